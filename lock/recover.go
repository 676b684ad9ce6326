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
// [Locker.Readmit], and so are nodes that are lost again meanwhile, if a quorum is left. Otherwise none is admitted.
// The result is the nodes that this call admitted, also with an error.
func (l *Locker) Recover(ctx context.Context, above fence.Token) (admitted []string, err error) {
	states, err := l.recoverable(ctx, above, above)
	if err != nil {
		return nil, err
	}
	base := (int64(above)>>epochShift + 1) << epochShift
	begun := make([]Admission, 0, len(states))
	for i, st := range states {
		if st.err != nil || st.admitted {
			continue
		}
		a, err := l.recovery(ctx, l.nodes[i], states)
		if err != nil {
			return nil, fmt.Errorf("recover %s: %w", l.nodes[i].name, err)
		}
		a.Base = base
		begun = append(begun, a)
	}
	for i := range begun {
		if begun[i], err = l.outlast(ctx, begun[i]); err != nil {
			return nil, err
		}
	}
	// Nodes may have come back meanwhile with higher tokens. What programs counted in vain on a node that was not lost
	// is below the base.
	if states, err = l.recoverable(ctx, above, fence.Token(base)); err != nil {
		return nil, err
	}
	ready, errs := l.ready(begun, states)
	for _, a := range ready {
		if err := l.Admit(ctx, a); err != nil { // the others can do without it
			errs = append(errs, err)
			continue
		}
		admitted = append(admitted, a.Node)
	}
	return admitted, errors.Join(errs...)
}

// ready returns the admissions that can end, and errors of the others; none if they make no quorum: a part of the
// nodes would be of no use, and their base would be above the token with which Recover is repeated.
func (l *Locker) ready(begun []Admission, states []nodeState) (ready []Admission, errs []error) {
	for _, a := range begun {
		st := nodeState{}
		if n, err := l.nodeNamed(a.Node); err == nil {
			st = states[n.index]
		}
		err := st.err
		if err == nil && (st.pending != a.Nonce || st.void) {
			err = errRestarted
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("recover %s: %w", a.Node, err))
			continue
		}
		ready = append(ready, a)
	}
	if left := admitted(states) + len(ready); left < l.quorum {
		return nil, append(errs, fmt.Errorf("%d nodes would be admitted, and %d are needed: none was; repeat it", left, l.quorum))
	}
	return ready, errs
}

// recoverable asks all nodes whether the group may be recovered above a token. Everything that they remember has to be
// below limit.
func (l *Locker) recoverable(ctx context.Context, above, limit fence.Token) ([]nodeState, error) {
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
	}
	switch {
	case admitted(states) >= l.quorum:
		return nil, &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("are admitted, %d of them, and know the epoch: admit the others, no token is needed", admitted(states))}
	case answered < l.quorum:
		return nil, l.unanswered(states)
	}
	return states, l.below(ctx, states, above, limit)
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

// below checks that everything on the nodes is below a limit: their counters, their bases, and the epochs that they
// were promised. Its error names the last token of the highest epoch: while an admitted node counts attempts that come
// to nothing, a lower one would soon be too low.
func (l *Locker) below(ctx context.Context, states []nodeState, above, limit fence.Token) error {
	var top int64
	var at string
	for i, n := range l.nodes {
		st := states[i]
		if st.err != nil {
			continue
		}
		all, err := n.pages(ctx, "look", unlimited)
		if err != nil {
			return &NodeError{Node: n.name, Err: serverError(err)}
		}
		if here := max(all.top, st.base, st.promised<<epochShift); here > top {
			top, at = here, n.name
		}
	}
	if int64(limit) <= top {
		return &fence.InvalidError{Field: "above", Reason: fmt.Sprintf(
			"is %d; %s remembers %d, and it must be higher: repeat with %d, if nobody was given a higher token", above, at, top, top|(1<<epochShift-1))}
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
