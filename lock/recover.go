package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// Recover admits the lost nodes of a group without Config.Epochs and Config.Armer, after the loss of so many that the
// others cannot tell which epochs were used. above replaces that knowledge: it must be at least the highest token
// that was ever issued, and all later tokens are higher. Run one Recover at a time.
//
// It waits for MaxTTL, unless ctx ends first; called again, it continues, or waits anew if MaxTTL is longer now. The
// error is a [*fence.InvalidError], and nothing was changed, if above is not higher than the tokens on the nodes, if a
// quorum is admitted, or if the epoch is kept elsewhere. A quorum must answer; nodes that do not are left to
// [Locker.Readmit]. The result is the nodes that this call admitted.
func (l *Locker) Recover(ctx context.Context, above fence.Token) (admitted []string, err error) {
	states, err := l.recoverable(ctx, above)
	if err != nil {
		return nil, err
	}
	begun := make([]Admission, 0, len(states))
	for i, st := range states {
		if st.err != nil || st.admitted {
			continue
		}
		a, err := l.recovery(ctx, l.nodes[i], states)
		if err != nil {
			return nil, fmt.Errorf("recover %s: %w", l.nodes[i].name, err)
		}
		a.Base = (int64(above)>>epochShift + 1) << epochShift
		begun = append(begun, a)
	}
	for i := range begun {
		if begun[i], err = l.outlast(ctx, begun[i]); err != nil {
			return nil, err
		}
	}
	// Nodes may have come back meanwhile with higher tokens.
	if _, err := l.recoverable(ctx, above); err != nil {
		return nil, err
	}
	for _, a := range begun {
		if err := l.Admit(ctx, a); err != nil {
			return admitted, err
		}
		admitted = append(admitted, a.Node)
	}
	return admitted, nil
}

// recoverable asks all nodes whether the group may be recovered above a token.
func (l *Locker) recoverable(ctx context.Context, above fence.Token) ([]nodeState, error) {
	if !l.keepsEpoch() {
		return nil, &fence.InvalidError{Field: "epochs", Reason: "are kept outside of the nodes: admit each node, no token is needed"}
	}
	if above <= 0 || int64(above)>>epochShift >= maxEpoch {
		return nil, &fence.InvalidError{Field: "above", Reason: fmt.Sprintf("is %d; it must be positive and below %d", above, int64(maxEpoch)<<epochShift)}
	}
	states := l.states(ctx)
	answered := 0
	for i, st := range states {
		if st.err != nil {
			continue
		}
		answered++
		if st.record > 0 {
			return nil, &fence.InvalidError{Field: "epochs", Reason: fmt.Sprintf(
				"are kept by PostgreSQL, as %s remembers: admit each node, no token is needed", l.nodes[i].name)}
		}
		if err := l.nodes[i].below(ctx, st, above); err != nil {
			return nil, err
		}
	}
	switch {
	case admitted(states) >= l.quorum:
		return nil, &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("are admitted, %d of them, and know the epoch: admit the others, no token is needed", admitted(states))}
	case answered < l.quorum:
		return nil, l.unanswered(states)
	}
	return states, nil
}

func (l *Locker) unanswered(states []nodeState) error {
	var causes []*NodeError
	for i, st := range states {
		if st.err != nil {
			causes = append(causes, &NodeError{Node: l.nodes[i].name, Err: st.err})
		}
	}
	return l.quorumError("recover", l.cfg.KeyPrefix, causes)
}

// below checks that everything on a node is below a token: its counters, its base, and the epoch that it was
// promised.
func (n *node) below(ctx context.Context, st nodeState, above fence.Token) error {
	all, err := n.pages(ctx, "look", unlimited)
	if err != nil {
		return &NodeError{Node: n.name, Err: serverError(err)}
	}
	if top := max(all.top, st.base, st.promised<<epochShift); int64(above) <= top {
		return &fence.InvalidError{Field: "above", Reason: fmt.Sprintf("is %d; %s remembers %d, and it must be higher", above, n.name, top)}
	}
	return nil
}

// recovery begins a lost node's admission, or continues one whose quarantine runs and is long enough. (One without a
// quarantine may belong to a first start.)
func (l *Locker) recovery(ctx context.Context, n *node, states []nodeState) (Admission, error) {
	st := &states[n.index]
	if st.err != nil {
		return Admission{}, st.err
	}
	if st.pending != "" && !st.void {
		nonce, whole, err := n.underWay(ctx)
		if err != nil && !errors.Is(err, redis.Nil) {
			return Admission{}, serverError(err)
		}
		// More left than there was at first: the clock was set back, perhaps by hours.
		if nonce == st.pending && whole >= l.longestKnown(states) && st.quarantine <= whole {
			return Admission{Node: n.name, Nonce: nonce, Quarantine: whole}, nil
		}
		st.void = true // replaced, though its quarantine may run: with a shorter MaxTTL it was begun in vain
	}
	return l.write(ctx, n, states)
}

// outlast waits until the quarantine of an admission is over. If the node's clock is set back meanwhile, the
// quarantine starts over, and the result is the new admission.
func (l *Locker) outlast(ctx context.Context, a Admission) (Admission, error) {
	n, err := l.nodeNamed(a.Node)
	if err != nil {
		return a, err
	}
	for {
		left, err := n.inQuarantine(ctx)
		switch {
		case err != nil:
		case left > a.Quarantine:
			base := a.Base
			if a, err = l.recovery(ctx, n, l.states(ctx)); err == nil {
				a.Base = base
			}
		case left > 0:
			err = pause(ctx, min(left, askEvery)+jitter())
			if errors.Is(err, context.DeadlineExceeded) {
				err = errors.Join(err, &quarantineError{node: n.name, left: left})
			}
		default:
			return a, nil
		}
		if err != nil {
			return a, fmt.Errorf("recover %s: %w", n.name, err)
		}
	}
}
