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

// lines keeps this process's callers of one resource in the order in which they
// came: only the first of a line asks the nodes, and a release in this process
// wakes it at once.
type lines struct {
	mu sync.Mutex
	of map[string]*line
}

// line is those who want one resource. What the first hears is all that the others know.
type line struct {
	waiters []*waiter
	why     error // the first waits; nil: it has not asked yet
	at      time.Time
}

type waiter struct {
	came time.Time
	news chan struct{} // holds a value when somebody behind wants to know who has the resource
	turn chan struct{} // closed when it is the first
	wake chan struct{} // holds a value when the resource may be free
	home atomic.Bool   // it is in a queue on a node: only that one wakes it
}

// newsEvery is how often the first of a line asks for those who join it who has the resource, at most.
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

// count is how many stand in all lines.
func (q *lines) count() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.of {
		n += len(l.waiters)
	}
	return n
}

// waits notes why the first of a line waits.
func (q *lines) waits(resource string, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[resource].why, q.of[resource].at = why, time.Now()
}

// heldBy notes who holds the resource now, as the first of a line hears while it waits.
func (q *lines) heldBy(resource, holder string, expires time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[resource]
	if _, held := errors.AsType[*leasing.HeldError](l.why); held {
		l.why, l.at = &leasing.HeldError{Resource: resource, Holder: holder, RetryAfter: expires}, time.Now()
	}
}

// why is why one of a line waits, as far as its first knows. What was heard before this
// one came does not say who holds the resource: the lease may have been released since.
func (q *lines) why(resource string, w *waiter) error { return q.whySince(resource, w.came) }

// whySince is why for one who came then and stands in no line.
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

// leave gives the place in the line up, wherever it was.
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

// free tells the first in the line that the resource may be free. One that
// stands in a queue on a node hears of its turn from there: other processes may
// have come before it.
func (q *lines) free(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.of[resource]; l != nil && !l.waiters[0].home.Load() {
		l.waiters[0].call()
	}
}

// turn tells the first in the line that it is the first of all.
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
