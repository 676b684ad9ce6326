// Package quota bounds how much of something one owner may have at once, so that none takes all of it: connections of a
// role, requests of a principal, log-ins from an address.
package quota

import (
	"context"
	"slices"
	"sync"
)

// Quota counts the places that owners have. The zero value is ready, and bounds only what its callers name. It is safe
// for concurrent use.
type Quota[Owner comparable] struct {
	// All bounds the places of all owners together; 0: unbounded.
	All int

	mu      sync.Mutex
	used    int
	of      map[Owner]int // without owners that have none
	waiting []*waiter[Owner]
}

type waiter[Owner comparable] struct {
	owner  Owner
	atMost int
	came   chan struct{} // closed once it has its place
}

// Take takes a place for an owner that may have atMost of them (0: unbounded), and leave returns it, once however often
// it is called. false: there is none.
func (q *Quota[Owner]) Take(owner Owner, atMost int) (leave func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.fits(owner, atMost) {
		return nil, false
	}
	return q.place(owner), true
}

// Wait takes a place as Take does, and waits for one if there is none; the first that came is served first. The error is
// the cause of ctx's end.
func (q *Quota[Owner]) Wait(ctx context.Context, owner Owner, atMost int) (leave func(), err error) {
	q.mu.Lock()
	if q.fits(owner, atMost) {
		defer q.mu.Unlock()
		return q.place(owner), nil
	}
	w := &waiter[Owner]{owner, atMost, make(chan struct{})}
	q.waiting = append(q.waiting, w)
	q.mu.Unlock()
	select {
	case <-w.came:
		return q.leave(owner), nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, w); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	} else { // served at the same moment
		q.giveBack(owner)
	}
	return nil, context.Cause(ctx)
}

// Used returns how many places an owner has.
func (q *Quota[Owner]) Used(owner Owner) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of[owner]
}

func (q *Quota[Owner]) fits(owner Owner, atMost int) bool {
	return (q.All == 0 || q.used < q.All) && (atMost == 0 || q.of[owner] < atMost)
}

func (q *Quota[Owner]) place(owner Owner) (leave func()) {
	if q.of == nil {
		q.of = map[Owner]int{}
	}
	q.used++
	q.of[owner]++
	return q.leave(owner)
}

func (q *Quota[Owner]) leave(owner Owner) func() {
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.giveBack(owner)
	})
}

// giveBack frees a place and serves the waiters that fit now. The caller holds q.mu.
func (q *Quota[Owner]) giveBack(owner Owner) {
	q.used--
	if q.of[owner]--; q.of[owner] == 0 {
		delete(q.of, owner)
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter[Owner]) bool {
		if !q.fits(w.owner, w.atMost) {
			return false
		}
		q.used++
		q.of[w.owner]++
		close(w.came)
		return true
	})
}
