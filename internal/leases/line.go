package leases

import (
	"context"
	"slices"
	"sync"

	"github.com/fencegate/fencegate/fence/leasing"
)

// lines keeps this process's waiters for each resource in the order in which they came.
type lines struct {
	mu sync.Mutex
	of map[string]*line
}

type line struct {
	waiters []chan struct{} // each is closed when its waiter is the first
	why     error           // why the first waits; nil: it has not asked yet
}

// enter joins the queue. turn is closed when the caller is the first.
func (q *lines) enter(resource string) (turn chan struct{}) {
	turn = make(chan struct{})
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = make(map[string]*line)
	}
	if q.of[resource] == nil {
		q.of[resource] = &line{}
		close(turn)
	}
	q.of[resource].waiters = append(q.of[resource].waiters, turn)
	return turn
}

func (q *lines) leave(resource string, turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[resource]
	at := slices.Index(l.waiters, turn)
	l.waiters = slices.Delete(l.waiters, at, at+1)
	switch {
	case len(l.waiters) == 0:
		delete(q.of, resource)
	case at == 0:
		l.why = nil
		close(l.waiters[0])
	}
}

// waits records why the first waits.
func (q *lines) waits(resource string, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[resource].why = why
}

// why returns why the first waits, if it has asked.
func (q *lines) why(resource string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if why := q.of[resource].why; why != nil {
		return why
	}
	return &leasing.HeldError{Resource: resource}
}

// await blocks until it is the caller's turn.
func await(ctx context.Context, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	default:
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
