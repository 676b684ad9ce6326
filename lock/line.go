package lock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// lines keeps this process's callers of one resource in the order in which they
// came: only the first of a line asks the nodes, and a release in this process
// wakes it at once.
type lines struct {
	mu sync.Mutex
	of map[string][]*waiter
}

type waiter struct {
	turn chan struct{} // closed when it is the first
	wake chan struct{} // holds a value when the resource may be free
	home atomic.Bool   // it is in a queue on a node: only that one wakes it
}

// enter joins the line of a resource.
func (q *lines) enter(resource string) *waiter {
	w := &waiter{turn: make(chan struct{}), wake: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = make(map[string][]*waiter)
	}
	q.of[resource] = append(q.of[resource], w)
	if len(q.of[resource]) == 1 {
		close(w.turn)
	}
	return w
}

// leave gives the place in the line up, wherever it was.
func (q *lines) leave(resource string, w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.of[resource]
	at := slices.Index(line, w)
	line = slices.Delete(line, at, at+1)
	switch {
	case len(line) == 0:
		delete(q.of, resource)
		return
	case at == 0:
		close(line[0].turn)
	}
	q.of[resource] = line
}

// free tells the first in the line that the resource may be free. One that
// stands in a queue on a node hears of its turn from there: other processes may
// have come before it.
func (q *lines) free(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.of[resource]; len(line) > 0 && !line[0].home.Load() {
		line[0].call()
	}
}

// turn tells the first in the line that it is the first of all.
func (q *lines) turn(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.of[resource]; len(line) > 0 {
		line[0].call()
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
