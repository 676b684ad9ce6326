package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// keepsEpoch reports whether the nodes themselves keep the epoch.
func (g *Group) keepsEpoch() bool {
	return g.cfg.Epochs == nil && g.cfg.Armer == nil && !g.cfg.Embedded
}

// NewBase raises the epoch above that of every reachable node. n is the node to be admitted, or nil.
func (g *Group) NewBase(ctx context.Context, states []node.State, n *node.Node) (int64, error) {
	var above int64
	for _, st := range states {
		above = max(above, st.Base>>epochShift)
	}
	epoch, err := above+1, error(nil)
	switch {
	case g.keepsEpoch():
		epoch, err = g.agreeEpoch(ctx, n, above)
	case g.cfg.Epochs != nil && !g.cfg.Embedded:
		epoch, err = g.cfg.Epochs.RaiseEpoch(ctx, above)
	}
	if err != nil {
		return 0, fmt.Errorf("raise the epoch above %d: %w", above, err)
	}
	if epoch <= above || epoch > maxEpoch {
		return 0, fmt.Errorf("epoch %d is unusable: it must be over %d and at most %d", epoch, above, maxEpoch)
	}
	return epoch << epochShift, nil
}

// agreeEpoch returns an epoch above that of every completed token, if no store keeps it. It reads the epoch on N/2+1
// admitted nodes, promises the next one to as many, and checks these again, so that at one moment all of them had it.
// except, the node to be admitted, is not among them; nil: there is none.
func (g *Group) agreeEpoch(ctx context.Context, except *node.Node, above int64) (int64, error) {
	states := g.Read(ctx) // in any mode: a sweep asks too
	ask := func(epoch int64) (highest int64, err error) {
		var mu sync.Mutex
		var missing []string
		known := 0
		g.each(func(i int, n *node.Node) {
			if n == except {
				return
			}
			code, err := int64(-1), states[i].Err
			if err == nil && states[i].Admitted {
				code, err = n.Promise(ctx, states[i].Incarnation, epoch)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil || code < 0 || code < epoch {
				states[i].Admitted = false // it counts in no later step either
				missing = append(missing, n.Name)
				return
			}
			known++
			highest = max(highest, code)
		})
		if known < g.Quorum {
			return 0, fmt.Errorf("the epoch is kept by the nodes, and %d other ones are needed: %s did not take part", g.Quorum, strings.Join(missing, ", "))
		}
		return highest, nil
	}
	highest, err := ask(0)
	if err != nil {
		return 0, err
	}
	epoch := max(highest, above) + 1
	if epoch > maxEpoch {
		return epoch, nil // the caller reports that it is unusable
	}
	for range 2 {
		if _, err := ask(epoch); err != nil {
			return 0, err
		}
	}
	return epoch, nil
}

var errEpochElsewhere = errors.New("PostgreSQL keeps the epoch, as the nodes remember: set Config.Epochs, or give --postgres-url")

// epochElsewhere reports whether a node was admitted by a Locker whose Config.Epochs keeps the epoch.
func epochElsewhere(states []node.State) bool {
	return slices.ContainsFunc(states, func(st node.State) bool { return st.Stored })
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
func (g *Group) nextEpoch(ctx context.Context, since time.Time) error {
	select {
	case g.raise.turn <- struct{}{}:
		defer func() { <-g.raise.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if g.raise.at.After(since) {
		return nil
	}
	states := g.States(ctx)
	if g.keepsEpoch() && epochElsewhere(states) {
		return errEpochElsewhere
	}
	base, err := g.NewBase(ctx, states, nil)
	if err != nil {
		return err
	}
	errs := make([]error, len(g.Nodes))
	raised := 0
	g.each(func(i int, n *node.Node) {
		if errs[i] = states[i].Err; errs[i] == nil && states[i].Admitted {
			errs[i] = n.Raise(ctx, states[i].Incarnation, base)
		}
	})
	for i := range errs {
		if errs[i] == nil && states[i].Admitted {
			raised++
		}
	}
	if raised < g.Quorum {
		return fmt.Errorf("raise the epoch: %w", errors.Join(errs...))
	}
	g.raise.at = time.Now()
	return nil
}

// LastToken is the highest token that there is.
const LastToken fence.Token = 1<<53 - 1

// UsedUpError says that a resource has no token left in any epoch.
func UsedUpError(resource string) error {
	return fmt.Errorf("acquire %q: %w", resource, &fence.InvalidError{Field: "resource", Reason: fmt.Sprintf(
		"%q has used up its tokens: none is above %d, its counter or fence; use another resource name", resource, LastToken)})
}

// AfterExhausted makes another attempt possible for a resource that used up the tokens of its epoch, and returns the
// floor for it. Mostly the nodes go on to the next epoch. If the resource alone is in a later epoch than the nodes,
// because its fence was, only the resource goes on: with an Armer, any token above the fence is safe. Otherwise one
// resource would use up the epochs of the group.
func (g *Group) AfterExhausted(ctx context.Context, resource string, since time.Time, floor fence.Token) (fence.Token, error) {
	top, base := g.highest(ctx, resource, g.States(ctx))
	switch {
	case top >= LastToken:
		return 0, UsedUpError(resource)
	case g.cfg.Armer != nil && top>>epochShift > base>>epochShift:
		if (top+1)%(1<<epochShift) == 0 {
			top++ // the epoch's own number is never a token
		}
		return max(floor, top), nil
	}
	return floor, g.nextEpoch(ctx, since)
}

// highest returns a resource's highest counter on the nodes, and their highest base. A node that answers that tokens
// are used up has counted up to the floor.
func (g *Group) highest(ctx context.Context, resource string, states []node.State) (top, base fence.Token) {
	counters := make([]int64, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		if states[i].Err == nil && states[i].Admitted {
			counters[i] = n.Counter(ctx, resource)
		}
	})
	for i, st := range states {
		top, base = max(top, fence.Token(counters[i])), max(base, fence.Token(st.Base))
	}
	return top, base
}

// On average one in sweepEvery tries for a lock, in any process, checks whether the counters have to be swept.
// maxCounters is how many may stay on a node.
const (
	sweepEvery  = 1 << 15
	maxCounters = 100_000
)

// Sweep is admin.Admin.Sweep.
func (g *Group) Sweep(ctx context.Context) (int, error) {
	if err := g.AwaitKeys(ctx); err != nil {
		return 0, err
	}
	states := g.Read(ctx)
	var limit int64
	for _, st := range states {
		limit = max(limit, (st.Base>>epochShift+1)<<epochShift-1)
	}
	errs := make([]error, len(g.Nodes))
	found := make([]node.Counted, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		switch st := states[i]; {
		case st.Err != nil:
			errs[i] = st.Err
		case !st.Admitted:
			errs[i] = node.ErrQuarantined
		default:
			found[i], errs[i] = n.CountPages(ctx, "look", limit)
		}
	})
	base, err := g.sweepBase(ctx, states, found)
	if err != nil {
		return 0, err
	}
	swept := make([]int, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		if errs[i] == nil && base > 0 {
			swept[i], errs[i] = n.Sweep(ctx, states[i].Incarnation, base)
		}
	})
	total := 0
	for i, n := range g.Nodes {
		total += swept[i]
		if errs[i] != nil {
			errs[i] = &node.NodeError{Node: n.Name, Err: node.ServerError(errs[i])}
		}
	}
	return total, errors.Join(errs...)
}

// sweepBase returns the base of a sweep. The same base everywhere keeps the counters equal, which saves the second
// phase of later acquisitions.
func (g *Group) sweepBase(ctx context.Context, states []node.State, found []node.Counted) (base int64, err error) {
	ahead := 0
	for _, c := range found {
		base, ahead = max(base, c.Top), max(ahead, c.Ahead)
	}
	// All resources are raised to the one that was used most. Before that uses up their tokens, a new epoch begins.
	// If a store may keep the epochs that this Locker does not have, it starts none: the store would not learn of it,
	// and allocate it again after a loss of data.
	starts := base%(1<<epochShift) > 1<<(epochShift-1) || ahead > maxCounters/2
	if starts && (!g.keepsEpoch() || len(g.Nodes) > 1 && !epochElsewhere(states)) {
		if base, err = g.NewBase(ctx, states, nil); err == nil {
			base++ // a base at the very beginning of an epoch would look unused; see fresh
		}
	}
	return base, err
}

// SweepSometimes checks in the background, and sweeps if there are too many counters.
func (g *Group) SweepSometimes() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sweeping {
		return
	}
	g.sweeping = g.life.InBackground(func(context.Context) {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.sweeping = false
		}()
		for _, st := range g.States(g.ctx) {
			if st.Err == nil && st.Admitted && st.Counters > maxCounters {
				if _, err := g.Sweep(g.ctx); err != nil && g.ctx.Err() == nil {
					g.cfg.Logger.Warn("not all counters could be swept", "error", err)
				}
				return
			}
		}
	})
}
