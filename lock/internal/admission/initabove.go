package admission

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// InitAbove is admin.Admin.InitAbove.
func (g *Group) InitAbove(ctx context.Context, above fence.Token) error {
	if err := g.AwaitKeys(ctx); err != nil {
		return err
	}
	states, err := g.recoverable(ctx, above, above)
	if err != nil {
		return err
	}
	base := (int64(above)>>epochShift + 1) << epochShift
	begun := make(map[*node.Node]Admission, len(states))
	for i, st := range states {
		if st.Err != nil || st.Admitted {
			continue
		}
		a, err := g.beginAbove(ctx, g.Nodes[i], states)
		if err != nil {
			return fmt.Errorf("admit %s: %w", g.Nodes[i].Name, err)
		}
		a.Base = base
		begun[g.Nodes[i]] = a
	}
	for n, a := range begun {
		if begun[n], err = g.outlast(ctx, n, a); err != nil {
			return fmt.Errorf("admit %s: %w", n.Name, err)
		}
	}
	// Nodes may have come back with higher tokens. What programs counted without a quorum on a node that was not lost
	// is below the base.
	if states, err = g.recoverable(ctx, above, fence.Token(base)); err != nil {
		return err
	}
	ready, errs := g.ready(begun, states)
	for n, a := range ready {
		if err := g.End(ctx, n, a); err != nil { // the others can do without it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ready returns the admissions that can end, and errors of the others; none if they make no quorum: a part of the
// nodes would be of no use, and their base would be above the token with which Init is repeated.
func (g *Group) ready(begun map[*node.Node]Admission, states []node.State) (ready map[*node.Node]Admission, errs []error) {
	ready = make(map[*node.Node]Admission, len(begun))
	for n, a := range begun {
		st := states[n.Index]
		err := st.Err
		if err == nil && (st.Pending != a.Nonce || st.Void) {
			err = node.ErrRestarted
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("admit %s: %w", n.Name, err))
			continue
		}
		ready[n] = a
	}
	if left := admitted(states) + len(ready); left < g.Quorum {
		return nil, append(errs, fmt.Errorf("%d nodes would be admitted, and %d are needed: none was; repeat it", left, g.Quorum))
	}
	return ready, errs
}

// recoverable asks all nodes whether the group may go on above a token. Everything that they remember has to be
// below limit.
func (g *Group) recoverable(ctx context.Context, above, limit fence.Token) ([]node.State, error) {
	if !g.keepsEpoch() {
		return nil, &fence.InvalidError{Field: "epochs", Reason: "are kept outside of the nodes: admit each node, no token is needed"}
	}
	if above <= 0 || int64(above)>>epochShift >= maxEpoch {
		return nil, &fence.InvalidError{Field: "above", Reason: fmt.Sprintf("is %d; it must be positive and below %d", above, int64(maxEpoch)<<epochShift)}
	}
	states := g.States(ctx)
	answered := 0
	for i, st := range states {
		if st.Err != nil {
			continue
		}
		answered++
		if st.Stored {
			return nil, &fence.InvalidError{Field: "epochs", Reason: fmt.Sprintf(
				"are kept by PostgreSQL, as %s remembers: admit each node, no token is needed", g.Nodes[i].Name)}
		}
	}
	switch {
	case admitted(states) >= g.Quorum:
		return nil, &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("are admitted, %d of them, and know the epoch: admit the others, no token is needed", admitted(states))}
	case answered < g.Quorum:
		return nil, g.unanswered(states)
	}
	return states, g.below(ctx, states, above, limit)
}

func (g *Group) unanswered(states []node.State) error {
	var causes []*node.NodeError
	for i, st := range states {
		if st.Err != nil {
			causes = append(causes, &node.NodeError{Node: g.Nodes[i].Name, Err: st.Err})
		}
	}
	return g.QuorumError("init", g.Keys.Prefix, causes)
}

// below checks that everything on the nodes is below a limit: their counters, their bases, and the epochs that they
// were promised. Its error names the last token of the highest epoch: while an admitted node counts attempts that come
// to nothing, a lower one would soon be too low.
func (g *Group) below(ctx context.Context, states []node.State, above, limit fence.Token) error {
	var top int64
	var at string
	for i, n := range g.Nodes {
		st := states[i]
		if st.Err != nil {
			continue
		}
		all, err := n.CountPages(ctx, "look", node.Unlimited)
		if err != nil {
			return &node.NodeError{Node: n.Name, Err: node.ServerError(err)}
		}
		if here := max(all.Top, st.Base, st.Promised<<epochShift); here > top {
			top, at = here, n.Name
		}
	}
	if int64(limit) <= top {
		return &fence.InvalidError{Field: "above", Reason: fmt.Sprintf(
			"is %d; %s remembers %d, and it must be higher: repeat with %d, if nobody was given a higher token", above, at, top, top|(1<<epochShift-1))}
	}
	return nil
}

// beginAbove begins a lost node's admission, or continues one whose quarantine runs and is long enough. (One without a
// quarantine may belong to a first start.)
func (g *Group) beginAbove(ctx context.Context, n *node.Node, states []node.State) (Admission, error) {
	st := &states[n.Index]
	if st.Err != nil {
		return Admission{}, st.Err
	}
	if st.Pending != "" && !st.Void {
		nonce, whole, err := n.UnderWay(ctx)
		if err != nil {
			return Admission{}, err
		}
		// More left than there was at first: the clock was set back, perhaps by hours.
		if nonce == st.Pending && whole >= g.quarantine(states) && st.Quarantine <= whole {
			return Admission{Nonce: nonce, quarantine: whole, longest: whole}, nil
		}
		st.Void = true // replaced, though its quarantine may run: one with a shorter MaxTTL is too short
	}
	return g.write(ctx, n, states)
}

// outlast waits until the quarantine of an admission is over. If the node's clock is set back during the wait, the
// quarantine starts over, and the result is the new admission.
func (g *Group) outlast(ctx context.Context, n *node.Node, a Admission) (Admission, error) {
	for {
		left, err := n.InQuarantine(ctx)
		switch {
		case err != nil:
		case left > a.quarantine:
			base := a.Base
			if a, err = g.beginAbove(ctx, n, g.States(ctx)); err == nil {
				a.Base = base
			}
		case left > 0:
			err = Pause(ctx, min(left, askEvery)+g.cfg.Dice.jitter())
			if errors.Is(err, context.DeadlineExceeded) {
				err = errors.Join(err, &node.QuarantineError{Node: n.Name, Left: left})
			}
		default:
			return a, nil
		}
		if err != nil {
			return a, err
		}
	}
}
