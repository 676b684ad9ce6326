package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/lock/internal/node"
)

// Init is admin.Admin.Init.
func (g *Group) Init(ctx context.Context) error {
	if err := g.AwaitKeys(ctx); err != nil {
		return err
	}
	g.inits.Add(1)
	g.initing.Add(1)
	defer g.initing.Add(-1)
	for {
		if over, err := g.firstStart(ctx); over || err != nil {
			return err
		}
	}
}

// firstStart admits the nodes if they are proven empty, and reports whether nothing is left to do. Otherwise check again:
// another process may run Init too.
func (g *Group) firstStart(ctx context.Context) (over bool, err error) {
	states := g.States(ctx)
	if over, err := g.startIsOver(states); over {
		return true, err
	}
	raised, err := g.raised(ctx)
	if err != nil && admitted(states) >= g.Quorum {
		return true, nil // whatever the fence says: at most, empty nodes stay out
	}
	if err != nil {
		return false, fmt.Errorf("admit empty nodes: %w", err)
	}
	if raised { // perhaps for a lease on nodes that were admitted since they were asked
		states = g.States(ctx)
	}
	if !g.cfg.Embedded && (raised || !g.fresh(states)) || g.cfg.Embedded && unreachable(states) {
		if admitted(states) >= g.Quorum {
			return true, nil
		}
		return true, g.notAdmitted(states)
	}
	err = g.admitFresh(ctx, states)
	if err != nil && (voids(err) || errors.Is(err, node.ErrQuarantined)) {
		err = Pause(ctx, g.cfg.Dice.jitter()/4)
	}
	if err != nil {
		return false, fmt.Errorf("admit empty nodes: %w", err)
	}
	return false, nil
}

// startIsOver reports whether a first start is over: all nodes are admitted, or with a shorter TTL than this Locker's.
func (g *Group) startIsOver(states []node.State) (bool, error) {
	if err := g.checkMaxTTL(states); err != nil {
		return true, fmt.Errorf("init: %w", err)
	}
	return admitted(states) == len(states), nil
}

// raised reports whether the fence records earlier leases. An error may also come from [Locker.mayAdmit].
func (g *Group) raised(ctx context.Context) (bool, error) {
	if err := g.mayAdmit(ctx); err != nil {
		return false, err
	}
	if g.cfg.Armer == nil || g.cfg.Embedded {
		return false, nil
	}
	return g.cfg.Armer.Raised(ctx)
}

// admitFresh admits the nodes that are not admitted. The nonces are written first, and the nodes are proven empty
// after that, so any change in between is noticeTime.
func (g *Group) admitFresh(ctx context.Context, states []node.State) error {
	nonces := make([]string, len(states))
	group, _ := g.Limits(states)
	for i, st := range states {
		if st.Admitted {
			continue
		}
		nonces[i] = g.NewNonce()
		if err := g.Nodes[i].AdmitBegin(ctx, nonces[i], 0, group.Granted, st); err != nil {
			return err
		}
	}
	states = g.States(ctx)
	if !g.cfg.Embedded && !g.fresh(states) {
		return node.ErrRace
	}
	var base int64
	if g.cfg.Epochs != nil && g.cfg.Armer == nil || g.cfg.Embedded && anyBase(states) {
		var err error
		if base, err = g.NewBase(ctx, states, nil); err != nil {
			return err
		}
	}
	group, _ = g.Limits(states)
	for i, nonce := range nonces {
		if nonce == "" {
			continue
		}
		if err := g.Nodes[i].Admit(ctx, nonce, base, group, g.cfg.Epochs != nil); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) notAdmitted(states []node.State) error {
	var causes []*node.NodeError
	for i, st := range states {
		switch {
		case st.Err != nil:
			causes = append(causes, &node.NodeError{Node: g.Nodes[i].Name, Err: st.Err})
		case !st.Admitted:
			causes = append(causes, &node.NodeError{Node: g.Nodes[i].Name, Err: node.ErrQuarantined})
			g.nodeLost(g.Nodes[i])
		}
	}
	return g.QuorumError("init", g.Keys.Prefix, causes)
}

// fresh reports whether the group has never been used. If a node is admitted, the first start has begun on all of
// them, so an empty node beside it has lost its data since.
//
// If the nodes keep the epoch, a first start leaves them without one. A node with an epoch was readmitted, or another
// was to be, so counters that existed nowhere else may have been lost, and a base of 0 would make tokens fall.
func (g *Group) fresh(states []node.State) bool {
	begun := admitted(states) > 0
	for _, st := range states {
		switch {
		case g.keepsEpoch() && (st.Base > 0 || st.Promised > 0):
			return false
		case begun && !st.Admitted && (st.Pending == "" || st.Void):
			return false
		case st.Err != nil, st.Counters > 0, st.Locks, st.Emptied, st.Quarantine > 0:
			return false
		case st.Base%(1<<epochShift) > 0: // a sweep deleted the counters and kept only their maximum
			return false
		case st.Incarnation == "" && st.HasBase, st.Incarnation != "" && !st.Admitted:
			return false
		}
	}
	return true
}

// initGrace is how long a group that was never used is left to Init after its last call.
const initGrace = 10 * time.Second

// leftByInit waits while the group was never used and Init is being called, also repeatedly. A quarantine that began
// then would keep Init from admitting the nodes. It is false if the Locker is closed.
func (g *Group) leftByInit() bool {
	for g.neverUsed(g.ctx) {
		before := g.inits.Load()
		if Pause(g.ctx, initGrace) != nil {
			return false
		}
		if g.initing.Load() == 0 && g.inits.Load() == before {
			return true
		}
	}
	return g.ctx.Err() == nil
}

// neverUsed reports that neither the fence nor any node that answers knows of a lease.
func (g *Group) neverUsed(ctx context.Context) bool {
	if g.cfg.Armer == nil || g.cfg.Embedded {
		return false
	}
	if raised, err := g.raised(ctx); raised || err != nil {
		return false
	}
	for _, st := range g.States(ctx) {
		if st.Err == nil && (st.Incarnation != "" || st.HasBase || st.Counters > 0 || st.Locks || st.Emptied || st.Quarantine > 0) {
			return false
		}
	}
	return true
}

func unreachable(states []node.State) bool {
	for _, st := range states {
		if st.Err != nil {
			return true
		}
	}
	return false
}

func anyBase(states []node.State) bool {
	for _, st := range states {
		if st.HasBase {
			return true
		}
	}
	return false
}
