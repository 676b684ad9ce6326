package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// InitOption is an option of [Locker.Init].
type InitOption func(*initOptions)

type initOptions struct {
	above fence.Token
	given bool
}

// Above has [Locker.Init] go on with a group without Config.Epochs and Config.Armer, after the loss of so many nodes that
// the others cannot tell which epochs were used. token replaces that knowledge: it must be no lower than any token issued,
// and all later tokens are higher. Run one such Init at a time.
//
// Init then admits the lost nodes after a quarantine of the group's longest TTL, as the remaining nodes keep it, else of
// Config.MaxTTL. If ctx ends, the next call continues. The error is a [*fence.InvalidError], and nothing was changed, if
// token is not higher than the tokens on the nodes, if a quorum is admitted, or if the epoch is kept elsewhere. A quorum
// must answer; nodes that do not are left to [Locker.Admit], and so are nodes that are lost again meanwhile, if a quorum
// is left. Otherwise none is admitted.
func Above(token fence.Token) InitOption {
	return func(o *initOptions) { o.above, o.given = token, true }
}

// initAbove is Init with [Above].
func (l *Locker) initAbove(ctx context.Context, above fence.Token) error {
	states, err := l.recoverable(ctx, above, above)
	if err != nil {
		return err
	}
	base := (int64(above)>>epochShift + 1) << epochShift
	begun := make(map[*node]admission, len(states))
	for i, st := range states {
		if st.err != nil || st.admitted {
			continue
		}
		a, err := l.beginAbove(ctx, l.nodes[i], states)
		if err != nil {
			return fmt.Errorf("admit %s: %w", l.nodes[i].name, err)
		}
		a.base = base
		begun[l.nodes[i]] = a
	}
	for n, a := range begun {
		if begun[n], err = l.outlast(ctx, n, a); err != nil {
			return fmt.Errorf("admit %s: %w", n.name, err)
		}
	}
	// Nodes may have come back meanwhile with higher tokens. What programs counted in vain on a node that was not lost
	// is below the base.
	if states, err = l.recoverable(ctx, above, fence.Token(base)); err != nil {
		return err
	}
	ready, errs := l.ready(begun, states)
	for n, a := range ready {
		if err := l.end(ctx, n, a); err != nil { // the others can do without it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ready returns the admissions that can end, and errors of the others; none if they make no quorum: a part of the
// nodes would be of no use, and their base would be above the token with which Init is repeated.
func (l *Locker) ready(begun map[*node]admission, states []nodeState) (ready map[*node]admission, errs []error) {
	ready = make(map[*node]admission, len(begun))
	for n, a := range begun {
		st := states[n.index]
		err := st.err
		if err == nil && (st.pending != a.nonce || st.void) {
			err = errRestarted
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("admit %s: %w", n.name, err))
			continue
		}
		ready[n] = a
	}
	if left := admitted(states) + len(ready); left < l.quorum {
		return nil, append(errs, fmt.Errorf("%d nodes would be admitted, and %d are needed: none was; repeat it", left, l.quorum))
	}
	return ready, errs
}

// recoverable asks all nodes whether the group may go on above a token. Everything that they remember has to be
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
		if st.stored {
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
	return l.quorumError("init", l.keys.prefix, causes)
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

// beginAbove begins a lost node's admission, or continues one whose quarantine runs and is long enough. (One without a
// quarantine may belong to a first start.)
func (l *Locker) beginAbove(ctx context.Context, n *node, states []nodeState) (admission, error) {
	st := &states[n.index]
	if st.err != nil {
		return admission{}, st.err
	}
	if st.pending != "" && !st.void {
		nonce, whole, err := n.underWay(ctx)
		if err != nil && !errors.Is(err, redis.Nil) {
			return admission{}, serverError(err)
		}
		// More left than there was at first: the clock was set back, perhaps by hours.
		if nonce == st.pending && whole >= l.quarantine(states) && st.quarantine <= whole {
			return admission{nonce: nonce, quarantine: whole, longest: whole}, nil
		}
		st.void = true // replaced, though its quarantine may run: with a shorter MaxTTL it was begun in vain
	}
	return l.write(ctx, n, states)
}

// outlast waits until the quarantine of an admission is over. If the node's clock is set back meanwhile, the
// quarantine starts over, and the result is the new admission.
func (l *Locker) outlast(ctx context.Context, n *node, a admission) (admission, error) {
	for {
		left, err := n.inQuarantine(ctx)
		switch {
		case err != nil:
		case left > a.quarantine:
			base := a.base
			if a, err = l.beginAbove(ctx, n, l.states(ctx)); err == nil {
				a.base = base
			}
		case left > 0:
			err = pause(ctx, min(left, askEvery)+l.dice.jitter())
			if errors.Is(err, context.DeadlineExceeded) {
				err = errors.Join(err, &quarantineError{node: n.name, left: left})
			}
		default:
			return a, nil
		}
		if err != nil {
			return a, err
		}
	}
}
