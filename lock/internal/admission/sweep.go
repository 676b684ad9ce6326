package admission

import (
	"context"
	"errors"

	"github.com/fencegate/fencegate/lock/internal/node"
)

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
