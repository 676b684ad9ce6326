// Package groups groups calls of one kind, so that a server handles many at the cost of one.
//
// The guarantee: a call waits only for the groups before its own, and no call delays or fails another.
package groups

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
)

const (
	// maxGroup bounds a group: each of its calls takes locks in PostgreSQL.
	maxGroup = 64
	// Pace is how long a group delays the next one at most. While commits are fast, it has ended by then.
	Pace = time.Millisecond
	// maxFlying bounds the concurrent groups, and so the connections, when commits are slow.
	maxFlying = 4
	// Timeout bounds a group if PostgreSQL does not answer.
	Timeout = 2 * time.Second
)

// Groups groups calls of one kind. A call is sent at once if no group is in flight. Later calls form the next group,
// which is sent in one transaction that waits for no lock when the previous group has ended or its pace is over. A call
// that its group does not settle is left to its caller, so that none delays or fails another.
type Groups[T any] struct {
	Settle  func(ctx context.Context, group []T) []Settled // one for each, in order; a group is sorted by resource
	Key     func(T) string                                 // the resource: a group has each only once
	Timeout time.Duration                                  // of a group; its callers have their own bounds
	Pace    time.Duration                                  // after which the next group is sent, too

	mu      sync.Mutex
	waiting []*call[T]
	flying  int       // groups in flight
	left    time.Time // when the last of them was sent
}

type call[T any] struct {
	what   T
	answer chan Settled // buffered: holds one
}

// Settled is a group's result for one of its calls. The zero value means that nothing was done, and that the caller has
// to make the call alone.
type Settled struct {
	Done bool  // Err is the outcome
	Lost bool  // the outcome is unknown
	Err  error // valid if Done
}

// Do returns the group's result for a call. It returns an error if ctx ended first; if the call was already sent, the
// error is joined with [fence.ErrUnknown].
func (g *Groups[T]) Do(ctx context.Context, what T) (Settled, error) {
	if ctx.Err() != nil {
		return Settled{}, context.Cause(ctx)
	}
	one := &call[T]{what: what, answer: make(chan Settled, 1)}
	if g.join(one) {
		g.run(ctx, []*call[T]{one})
		return <-one.answer, nil
	}
	select {
	case got := <-one.answer:
		return got, nil
	case <-ctx.Done():
	}
	if g.leave(one) {
		return Settled{}, context.Cause(ctx)
	}
	select {
	case got := <-one.answer:
		return got, nil
	default:
		return Settled{}, fmt.Errorf("%w: %w", fence.ErrUnknown, context.Cause(ctx))
	}
}

// join reports whether the call is sent at once, in its caller's goroutine: another goroutine would add a tenth to the
// time of a single call. Otherwise the call waits.
func (g *Groups[T]) join(one *call[T]) (atOnce bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	atOnce = g.flying == 0 || len(g.waiting) == 0 && g.flying < maxFlying && time.Since(g.left) > g.Pace
	if atOnce {
		g.flying++
		g.left = time.Now()
	} else {
		g.waiting = append(g.waiting, one)
	}
	return atOnce
}

// leave removes a call that still waits, and reports whether it did.
func (g *Groups[T]) leave(one *call[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, one)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	return i >= 0
}

// next sends the next group, in place of one that ended, or beside those that are late.
func (g *Groups[T]) next(ended int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying -= ended
	if len(g.waiting) == 0 || g.flying == maxFlying {
		return
	}
	g.flying++
	g.left = time.Now()
	go g.run(context.Background(), g.take())
}

// take takes a group from the waiting calls, in the byte order of the resources. A second call for a resource waits for
// the group after. The caller has locked mu.
func (g *Groups[T]) take() []*call[T] {
	var group, later []*call[T]
	named := make(map[string]bool, min(len(g.waiting), maxGroup))
	for i, one := range g.waiting {
		if len(group) == maxGroup {
			later = append(later, g.waiting[i:]...)
			break
		}
		if key := g.Key(one.what); named[key] {
			later = append(later, one)
		} else {
			named[key] = true
			group = append(group, one)
		}
	}
	g.waiting = later
	slices.SortFunc(group, func(a, b *call[T]) int { return cmp.Compare(g.Key(a.what), g.Key(b.what)) })
	return group
}

// run settles a group, and then sends the next one, even if one of the driver's hooks panics: then each caller of the
// group sees the panic. ctx belongs to the group: only a call that is sent at once brings its caller's.
func (g *Groups[T]) run(ctx context.Context, group []*call[T]) {
	answers := Unsettled(len(group), true)
	late := time.AfterFunc(g.Pace, func() { g.next(0) })
	defer func() {
		_ = recover()
		for i, one := range group {
			one.answer <- answers[i]
		}
		late.Stop()
		g.next(1)
	}()
	all := make([]T, len(group))
	for i, one := range group {
		all[i] = one.what
	}
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	answers = g.Settle(ctx, all)
}

// Unsettled leaves n calls to their callers.
func Unsettled(n int, lost bool) []Settled {
	return slices.Repeat([]Settled{{Lost: lost}}, n)
}

// Waiting returns how many calls wait for a group.
func (g *Groups[T]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
