// Package groups puts calls of one kind together, so that a server settles many at the price of one.
//
// The guarantee: a call waits for no more than the groups before its own, and none can hold up or fail another.
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
	// Pace is how long a group holds up the next one at most: as long as commits are fast, it has ended by then.
	Pace = time.Millisecond
	// maxFlying bounds the groups, and so the connections, that are on their way where commits are slow.
	maxFlying = 4
	// Timeout bounds a group where PostgreSQL does not answer.
	Timeout = 2 * time.Second
)

// Groups puts calls of one kind together. A call goes at once where none is on its
// way; what comes meanwhile goes together as the next group, in one transaction that
// waits for nobody, when the group before has ended or its pace is over. A call that
// its group does not settle is its caller's again, so that none holds up or fails another.
type Groups[T any] struct {
	Settle  func(ctx context.Context, group []T) []Settled // one for each, in this order; a group is in the order of the resources' bytes
	Key     func(T) string                                 // the resource: a group has each once
	Timeout time.Duration                                  // of a group; its callers have bounds of their own
	Pace    time.Duration                                  // after which the next group leaves, too

	mu      sync.Mutex
	waiting []*call[T]
	flying  int       // groups on their way
	left    time.Time // when the last of them left
}

type call[T any] struct {
	what   T
	answer chan Settled // holds one
}

// Settled is what a group found out for one of its calls. The zero value: nothing was
// done, and the caller has to see to it alone.
type Settled struct {
	Done bool  // Err is the outcome
	Lost bool  // nobody knows what became of it
	Err  error // where Done
}

// Do returns what a group found out. An error: ctx ended before; where the call was on
// its way already, joined with [fence.ErrUnknown].
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

// join reports whether the call goes at once, in its caller's own goroutine: one more
// would cost a lone call a tenth of its time. Else it waits.
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

// leave reports whether the call still waited, and now never goes.
func (g *Groups[T]) leave(one *call[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, one)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	return i >= 0
}

// next has the next group go, in place of one that ended, or beside those that are late.
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

// take takes a group from those that wait, in the order of the resources' bytes. A second
// call for a resource waits for the group after. The caller has locked mu.
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

// run settles a group, and has the next one go, whatever the driver's hooks do: where
// one panics, each caller sees that for itself. ctx is of the group: only a call that
// goes at once brings its caller's.
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

// Waiting is how many calls wait for a group to leave.
func (g *Groups[T]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
