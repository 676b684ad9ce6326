package leases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// Lines queues a process's callers of each resource in the order of their calls. Only the first of a line asks the
// service. The zero Lines is empty.
type Lines struct {
	mu sync.Mutex
	of map[string]*line
}

// line has the callers that wait for one resource. They all use what the first one has learned.
type line struct {
	waiters []*Waiter
	why     error // why the first waits; nil: it has not asked yet
	at      time.Time
}

// Waiter is a caller in a line.
type Waiter struct {
	// News holds a value when another caller in the line needs to know the current holder.
	News chan struct{}
	// Wake holds a value when the resource may be free.
	Wake chan struct{}
	// Queued says that the first waits in a queue of the service: only the service wakes it.
	Queued atomic.Bool

	lines    *Lines
	resource string
	came     time.Time
	turn     chan struct{} // closed when it is the first
}

// Enter joins the line of a resource. The caller leaves it.
func (q *Lines) Enter(resource string) *Waiter {
	w := &Waiter{
		lines: q, resource: resource, came: time.Now(),
		News: make(chan struct{}, 1), Wake: make(chan struct{}, 1), turn: make(chan struct{}),
	}
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
		put(l.waiters[0].News)
	}
	l.waiters = append(l.waiters, w)
	return w
}

// put leaves a value in a channel of one, if there is none.
func put(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Count is the number of waiters in all lines.
func (q *Lines) Count() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.of {
		n += len(l.waiters)
	}
	return n
}

// Of is the number of waiters in the line of a resource.
func (q *Lines) Of(resource string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.of[resource]; l != nil {
		return len(l.waiters)
	}
	return 0
}

// Free wakes the first of the line, because the resource was freed in this process, unless the service wakes it: waiters
// of other processes may come before it.
func (q *Lines) Free(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.of[resource]; l != nil && !l.waiters[0].Queued.Load() {
		put(l.waiters[0].Wake)
	}
}

// Call wakes the first of the line, because the service says that the resource may be free.
func (q *Lines) Call(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.of[resource]; l != nil {
		put(l.waiters[0].Wake)
	}
}

// CallAll wakes the first of each line.
func (q *Lines) CallAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.of {
		put(l.waiters[0].Wake)
	}
}

// Why is why a caller that came at this time, and is in no line, has to wait, as far as the first of the line knows. A
// holder that was learned before is left out, because the lease may have been released since.
func (q *Lines) Why(resource string, came time.Time) error {
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

// Why is why the waiter waits, as far as the first of its line knows.
func (w *Waiter) Why() error { return w.lines.Why(w.resource, w.came) }

// Await blocks until it is the waiter's turn. The error is the context's, joined with why the line waits.
func (w *Waiter) Await(ctx context.Context) error {
	select {
	case <-w.turn:
		return nil
	default:
	}
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		return Ended(w.Why(), context.Cause(ctx))
	}
}

// Waits records why the first of a line waits.
func (w *Waiter) Waits(why error) {
	w.lines.mu.Lock()
	defer w.lines.mu.Unlock()
	l := w.lines.of[w.resource]
	l.why, l.at = why, time.Now()
}

// waited reports whether the first of the line has said why it waits.
func (w *Waiter) waited() bool {
	w.lines.mu.Lock()
	defer w.lines.mu.Unlock()
	return w.lines.of[w.resource].why != nil
}

// HeldBy records the current holder, as the first of a line learns it while it waits.
func (w *Waiter) HeldBy(holder string, expires time.Duration) {
	w.lines.mu.Lock()
	defer w.lines.mu.Unlock()
	l := w.lines.of[w.resource]
	if _, held := errors.AsType[*leasing.HeldError](l.why); held {
		l.why, l.at = &leasing.HeldError{Resource: w.resource, Holder: holder, RetryAfter: expires}, time.Now()
	}
}

// Pause blocks until the waiter is woken, or the time is over.
func (w *Waiter) Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.Wake:
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave gives up the place in the line.
func (w *Waiter) Leave() {
	q := w.lines
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[w.resource]
	at := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, at, at+1)
	switch {
	case len(l.waiters) == 0:
		delete(q.of, w.resource)
	case at == 0:
		l.why = nil
		close(l.waiters[0].turn)
	}
}

// Ended returns the error of a wait that ended: why it waited, joined with the context's error. If its source was
// closed, the holder does not matter any more.
func Ended(why, err error) error {
	if errors.Is(err, leasing.ErrClosed) || why == nil {
		return err
	}
	return fmt.Errorf("%w: %w", why, err)
}
