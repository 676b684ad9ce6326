package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// On average one in sweepEvery tries for a lock, in any process, checks whether the counters have to be swept.
// maxCounters is how many may stay on a node.
const (
	sweepEvery  = 1 << 15
	maxCounters = 100_000
)

var errEpochElsewhere = errors.New("PostgreSQL keeps the epoch, as the nodes remember: set Config.Epochs, or give --postgres-url")

var (
	raiseScript = redis.NewScript(raiseText)
	sweepScript = redis.NewScript(sweepText)
)

// Sweep deletes the counters of resources on all nodes and returns how many. They use about 100 bytes for each
// resource that was ever used. A Locker sweeps by itself when it finds a node with more than 100,000 of them.
//
// It raises every node's base to the highest counter and deletes the counters that are not above it, page by page, so
// that the nodes keep answering. Tokens stay unique and rising: those of all resources are higher from then on, so a
// resource's tokens jump. An acquisition in progress may find its token overtaken, and is retried. If the highest
// counter is in the upper half of its epoch, Sweep starts a new epoch: set Config.Epochs as the group's Lockers do.
//
// A counter in a later epoch than the nodes' stays: the resource's fence was there, perhaps because a writer made up a
// token, and the epochs up to it would be lost to all resources. If a node has more than 50,000 of them, Sweep starts a
// new epoch; those more than 1024 epochs above the nodes' do not count.
//
// The error names the nodes that could not be swept.
func (l *Locker) Sweep(ctx context.Context) (int, error) {
	if err := l.keyed(ctx); err != nil {
		return 0, err
	}
	states := l.read(ctx)
	var limit int64
	for _, st := range states {
		limit = max(limit, (st.base>>epochShift+1)<<epochShift-1)
	}
	errs := make([]error, len(l.nodes))
	found := make([]counted, len(l.nodes))
	l.each(func(i int, n *node) {
		switch st := states[i]; {
		case st.err != nil:
			errs[i] = st.err
		case !st.admitted:
			errs[i] = ErrQuarantined
		default:
			found[i], errs[i] = n.pages(ctx, "look", limit)
		}
	})
	base, err := l.sweepBase(ctx, states, found)
	if err != nil {
		return 0, err
	}
	swept := make([]int, len(l.nodes))
	l.each(func(i int, n *node) {
		if errs[i] == nil && base > 0 {
			swept[i], errs[i] = n.sweep(ctx, states[i].incarnation, base)
		}
	})
	total := 0
	for i, n := range l.nodes {
		total += swept[i]
		if errs[i] != nil {
			errs[i] = &NodeError{Node: n.name, Err: serverError(errs[i])}
		}
	}
	return total, errors.Join(errs...)
}

// sweepBase returns the base of a sweep. The same base everywhere keeps the counters equal, which saves the second
// phase of later acquisitions.
func (l *Locker) sweepBase(ctx context.Context, states []nodeState, found []counted) (base int64, err error) {
	ahead := 0
	for _, c := range found {
		base, ahead = max(base, c.top), max(ahead, c.ahead)
	}
	// All resources are raised to the one that was used most. Before that uses up their tokens, a new epoch begins.
	// If a store may keep the epochs that this Locker does not have, it starts none: the store would not learn of it,
	// and allocate it again after a loss of data.
	starts := base%(1<<epochShift) > 1<<(epochShift-1) || ahead > maxCounters/2
	if starts && (!l.keepsEpoch() || len(l.nodes) > 1 && !epochElsewhere(states)) {
		if base, err = l.newBase(ctx, states, nil); err == nil {
			base++ // a base at the very beginning of an epoch would look unused; see fresh
		}
	}
	return base, err
}

// epochElsewhere reports whether a node was admitted by a Locker whose Config.Epochs keeps the epoch.
func epochElsewhere(states []nodeState) bool {
	return slices.ContainsFunc(states, func(st nodeState) bool { return st.stored })
}

func (l *Locker) each(do func(i int, n *node)) {
	var all sync.WaitGroup
	for i, n := range l.nodes {
		all.Go(func() { do(i, n) })
	}
	all.Wait()
}

// unlimited has pages look at all counters.
const unlimited = math.MaxInt64

// counted is what pages found.
type counted struct {
	top     int64 // the highest counter up to the limit
	ahead   int   // counters above it that a new epoch may reach
	deleted int
}

// pages goes through a node's counters page by page, on the node itself: no page blocks it for long, and no counter
// is transferred.
func (n *node) pages(ctx context.Context, what string, limit int64) (all counted, err error) {
	for cursor := "0"; ; {
		values, err := sweepScript.Run(ctx, n.client, []string{n.keys.h}, cursor, what, limit).Slice()
		if err != nil {
			return all, err
		}
		if len(values) != 4 {
			return all, errMalformed
		}
		highest, _ := values[1].(string)
		all.top = max(all.top, number(highest))
		all.deleted += int(integer(values, 2))
		all.ahead += int(integer(values, 3))
		if cursor, _ = values[0].(string); cursor == "0" || cursor == "" {
			return all, nil
		}
	}
}

func (n *node) sweep(ctx context.Context, incarnation string, base int64) (int, error) {
	if err := n.raise(ctx, incarnation, base); err != nil {
		return 0, err
	}
	all, err := n.pages(ctx, "delete", unlimited)
	return all.deleted, err
}

// raise runs raise.lua.
func (n *node) raise(ctx context.Context, incarnation string, base int64) error {
	raised, err := raiseScript.Run(ctx, n.client, []string{n.keys.h}, incarnation, strconv.FormatInt(base, 10)).Slice()
	if err == nil && integer(raised, 0) != 1 {
		err = ErrQuarantined
	}
	return err
}

// raise is the time at which this Locker last raised the epoch.
type raise struct {
	turn chan struct{} // holds a value while the nodes are asked
	at   time.Time
}

// nextEpoch makes the nodes count in a new epoch, for a resource that used up the tokens of this one, unless that was
// done since the caller began. A base may be raised at any time and on any nodes: the effect is as if all counters
// had been incremented up to it. Nodes that cannot be reached now follow when they report that their tokens are used
// up.
func (l *Locker) nextEpoch(ctx context.Context, since time.Time) error {
	select {
	case l.raise.turn <- struct{}{}:
		defer func() { <-l.raise.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.raise.at.After(since) {
		return nil
	}
	states := l.states(ctx)
	if l.keepsEpoch() && epochElsewhere(states) {
		return errEpochElsewhere
	}
	base, err := l.newBase(ctx, states, nil)
	if err != nil {
		return err
	}
	errs := make([]error, len(l.nodes))
	raised := 0
	l.each(func(i int, n *node) {
		if errs[i] = states[i].err; errs[i] == nil && states[i].admitted {
			errs[i] = n.raise(ctx, states[i].incarnation, base)
		}
	})
	for i := range errs {
		if errs[i] == nil && states[i].admitted {
			raised++
		}
	}
	if raised < l.quorum {
		return fmt.Errorf("raise the epoch: %w", errors.Join(errs...))
	}
	l.raise.at = time.Now()
	return nil
}

// lastToken is the highest token that there is.
const lastToken fence.Token = 1<<53 - 1

// usedUpError says that a resource has no token left in any epoch.
func usedUpError(resource string) error {
	return fmt.Errorf("acquire %q: %w", resource, &fence.InvalidError{Field: "resource", Reason: fmt.Sprintf(
		"%q has used up its tokens: none is above %d, its counter or fence; use another resource name", resource, lastToken)})
}

// afterExhausted makes another attempt possible for a resource that used up the tokens of its epoch, and returns the
// floor for it. Mostly the nodes go on to the next epoch. If the resource alone is in a later epoch than the nodes,
// because its fence was, only the resource goes on: with an Armer, any token above the fence is safe. Otherwise one
// resource would use up the epochs of the group.
func (l *Locker) afterExhausted(ctx context.Context, resource string, since time.Time, floor fence.Token) (fence.Token, error) {
	top, base := l.highest(ctx, resource, l.states(ctx))
	switch {
	case top >= lastToken:
		return 0, usedUpError(resource)
	case l.cfg.Armer != nil && top>>epochShift > base>>epochShift:
		if (top+1)%(1<<epochShift) == 0 {
			top++ // the epoch's own number is never a token
		}
		return max(floor, top), nil
	}
	return floor, l.nextEpoch(ctx, since)
}

// highest returns a resource's highest counter on the nodes, and their highest base. A node that answers that tokens
// are used up has counted up to the floor.
func (l *Locker) highest(ctx context.Context, resource string, states []nodeState) (top, base fence.Token) {
	counters := make([]int64, len(l.nodes))
	l.each(func(i int, n *node) {
		if states[i].err == nil && states[i].admitted {
			text, _ := n.client.HGet(ctx, n.keys.h, counterField(resource)).Result() // missing: not known
			counters[i] = number(text)
		}
	})
	for i, st := range states {
		top, base = max(top, fence.Token(counters[i])), max(base, fence.Token(st.base))
	}
	return top, base
}

// sweepSometimes checks in the background, and sweeps if there are too many counters.
func (l *Locker) sweepSometimes() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.sweeping {
		return
	}
	l.sweeping = true
	l.background.Go(func() {
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.sweeping = false
		}()
		for _, st := range l.states(l.ctx) {
			if st.err == nil && st.admitted && st.counters > maxCounters {
				if _, err := l.Sweep(l.ctx); err != nil && l.ctx.Err() == nil {
					l.cfg.Logger.Warn("not all counters could be swept", "error", err)
				}
				return
			}
		}
	})
}
