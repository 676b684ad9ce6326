package lock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// lines queues this process's callers of each resource in the order of their calls. Only the first of a line asks the
// nodes. A release in this process wakes it at once.
type lines struct {
	mu sync.Mutex
	of map[string]*line
}

// line has the callers that wait for one resource. They all use what the first one has learned.
type line struct {
	waiters []*waiter
	why     error // why the first waits; nil: it has not asked yet
	at      time.Time
}

type waiter struct {
	came time.Time
	news chan struct{} // holds a value when another caller in the line needs to know the current holder
	turn chan struct{} // closed when it is the first
	wake chan struct{} // holds a value when the resource may be free
	home atomic.Bool   // it is in a queue on a node: only the node wakes it
}

// newsEvery is the minimum interval at which the first of a line asks for the current holder on behalf of later
// callers.
const newsEvery = 20 * time.Millisecond

// enter joins the line of a resource.
func (q *lines) enter(resource string) *waiter {
	w := &waiter{came: time.Now(), news: make(chan struct{}, 1), turn: make(chan struct{}), wake: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = make(map[string]*line)
	}
	l := q.of[resource]
	if l == nil {
		l = &line{}
		q.of[resource] = l
		close(w.turn)
	} else {
		select {
		case l.waiters[0].news <- struct{}{}:
		default:
		}
	}
	l.waiters = append(l.waiters, w)
	return w
}

// count is the number of waiters in all lines.
func (q *lines) count() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.of {
		n += len(l.waiters)
	}
	return n
}

// waits records why the first of a line waits.
func (q *lines) waits(resource string, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[resource].why, q.of[resource].at = why, time.Now()
}

// heldBy records the current holder, as the first of a line learns it while it waits.
func (q *lines) heldBy(resource, holder string, expires time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[resource]
	if _, held := errors.AsType[*leasing.HeldError](l.why); held {
		l.why, l.at = &leasing.HeldError{Resource: resource, Holder: holder, RetryAfter: expires}, time.Now()
	}
}

// why is the reason for which a waiter waits, as far as the line's first knows it. A holder learned before this
// waiter came is left out, because the lease may have been released since.
func (q *lines) why(resource string, w *waiter) error { return q.whySince(resource, w.came) }

// whySince is why for a caller that came at that time and is in no line.
func (q *lines) whySince(resource string, came time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[resource]
	if l == nil {
		return &leasing.HeldError{Resource: resource}
	}
	held, known := errors.AsType[*leasing.HeldError](l.why)
	switch {
	case l.why == nil, known && l.at.Before(came):
		return &leasing.HeldError{Resource: resource}
	case known:
		now := *held
		now.RetryAfter = max(0, now.RetryAfter-time.Since(l.at))
		return &now
	}
	return l.why
}

// leave gives up the place in the line.
func (q *lines) leave(resource string, w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[resource]
	at := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, at, at+1)
	switch {
	case len(l.waiters) == 0:
		delete(q.of, resource)
	case at == 0:
		l.why = nil
		close(l.waiters[0].turn)
	}
}

// free wakes the first of the line, because the resource may be free. A waiter in a node's queue is woken by the node
// instead, because waiters of other processes may come before it.
func (q *lines) free(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.of[resource]; l != nil && !l.waiters[0].home.Load() {
		l.waiters[0].call()
	}
}

// turn wakes the first of the line, because it is the first in the node's queue.
func (q *lines) turn(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.of[resource]; l != nil {
		l.waiters[0].call()
	}
}

func (w *waiter) call() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// await blocks until it is the waiter's turn.
func (w *waiter) await(ctx context.Context) error {
	select {
	case <-w.turn:
		return nil
	default:
	}
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
