package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// epochShift places the epoch above the 32 bits that count acquisitions;
// maxEpoch keeps tokens below 2^53, which Lua's numbers hold exactly.
const (
	epochShift = 32
	maxEpoch   = 1<<21 - 1
)

// Admission is a node's way back into its group, between its beginning and its
// end.
type Admission struct {
	Node       string
	Nonce      string        // the incarnation that it will be
	Base       int64         // every later token that needs this node is higher
	Quarantine time.Duration // how long the node still grants nothing
}

var (
	errAdmitted  = errors.New("node is admitted already")
	errRace      = errors.New("another admission of the node has begun")
	errRestarted = errors.New("the node has lost its run or its data since the admission began")
	errStaleBase = errors.New("the node has a higher epoch already")
)

// quarantineError says that a quarantine runs, and how long still.
type quarantineError struct {
	node string
	left time.Duration
}

func (e *quarantineError) Error() string {
	return fmt.Sprintf("%s is in quarantine for another %v, until every lease it may have granted is over", e.node, e.left)
}

func (e *quarantineError) Is(target error) bool { return target == ErrQuarantined }

// AdmitBegin begins to admit a node that lost its data or its run: it writes
// the new incarnation's nonce and the quarantine to the node, and only then
// raises the epoch. (With an epoch raised before the nonce is written, a slow
// second admission made tokens fall.) [Locker.Admit] ends it.
//
// It needs an EpochStore, or an Armer, which makes tokens rise by itself.
func (l *Locker) AdmitBegin(ctx context.Context, node string) (Admission, error) {
	n, err := l.nodeNamed(node)
	if err != nil {
		return Admission{}, err
	}
	if l.cfg.Epochs == nil && l.cfg.Armer == nil && !l.cfg.Embedded {
		return Admission{}, fmt.Errorf("admit %s: an epoch store is needed, or tokens could fall: set Config.Epochs", node)
	}
	states := l.states(ctx)
	st := states[n.index]
	switch {
	case st.err != nil:
		return Admission{}, fmt.Errorf("admit %s: %w", node, st.err)
	case st.admitted:
		return Admission{}, errAdmitted
	}
	// The longest TTL that anybody may have used, as far as it is still known.
	longest := l.cfg.MaxTTL
	for _, other := range states {
		longest = max(longest, other.maxTTL)
	}
	if l.cfg.Embedded {
		longest = 0
	}
	a := Admission{Node: node, Nonce: newID(), Quarantine: longest}
	if err := n.admitBegin(ctx, a.Nonce, longest, st.incarnation); err != nil {
		return Admission{}, fmt.Errorf("admit %s: %w", node, err)
	}
	a.Base, err = l.newBase(ctx, states)
	if err != nil {
		return Admission{}, fmt.Errorf("admit %s: %w", node, err)
	}
	return a, nil
}

// newBase raises the epoch above that of every reachable node.
func (l *Locker) newBase(ctx context.Context, states []nodeState) (int64, error) {
	var above int64
	for _, st := range states {
		above = max(above, st.base>>epochShift)
	}
	epoch := above + 1
	if l.cfg.Epochs != nil && !l.cfg.Embedded {
		var err error
		if epoch, err = l.cfg.Epochs.RaiseEpoch(ctx, above); err != nil {
			return 0, fmt.Errorf("raise the epoch above %d: %w", above, err)
		}
	}
	if epoch <= above || epoch > maxEpoch {
		return 0, fmt.Errorf("epoch %d is unusable: it must be over %d and at most %d", epoch, above, maxEpoch)
	}
	return epoch << epochShift, nil
}

// Admit ends an admission after its quarantine. While that runs the error is
// [ErrQuarantined]. Any other error means that the admission is void: begin again.
func (l *Locker) Admit(ctx context.Context, a Admission) error {
	n, err := l.nodeNamed(a.Node)
	if err != nil {
		return err
	}
	if err := n.admit(ctx, a.Nonce, a.Base, l.cfg.MaxTTL); err != nil {
		return fmt.Errorf("admit %s: %w", a.Node, err)
	}
	return nil
}

// Readmit is [Locker.AdmitBegin], the wait, and [Locker.Admit], again where
// another admission came between, until the node is admitted or ctx ends.
func (l *Locker) Readmit(ctx context.Context, node string) error {
	for {
		a, err := l.AdmitBegin(ctx, node)
		wait := a.Quarantine // on this machine's clock as well as on the node's
		for err == nil {
			if err = pause(ctx, wait); err != nil {
				break
			}
			err = l.Admit(ctx, a)
			if err == nil {
				return nil
			}
			quarantine, ok := errors.AsType[*quarantineError](err)
			switch {
			case ok && quarantine.left <= a.Quarantine:
				wait, err = quarantine.left+time.Millisecond, nil
			case ok: // the node's clock was set back: begin again
				err = errRace
			}
		}
		var quarantine *quarantineError
		switch {
		case errors.Is(err, errAdmitted):
			return nil
		case errors.As(err, &quarantine): // somebody else's: see what becomes of it
			err = pause(ctx, min(quarantine.left, l.cfg.MaxTTL)+jitter())
		case voids(err):
			err = pause(ctx, jitter())
		}
		if err != nil {
			return err
		}
	}
}

// voids reports whether an admission has to begin again.
func voids(err error) bool {
	return errors.Is(err, errRace) || errors.Is(err, errRestarted) || errors.Is(err, errStaleBase)
}

func jitter() time.Duration { return 50*time.Millisecond + rand.N(200*time.Millisecond) }

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// admitsByItself reports whether lost nodes are admitted without being asked for.
func (l *Locker) admitsByItself() bool { return l.cfg.Armer != nil || l.cfg.Embedded }

// nodeLost starts the admission of a node that answered as a stranger, where
// that may happen by itself.
func (l *Locker) nodeLost(n *node) {
	if !l.admitsByItself() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.admitting[n.index] {
		return
	}
	l.admitting[n.index] = true
	l.background.Go(func() { l.lookAfter(n) })
}

// lookAfter admits a lost node, however long it takes.
func (l *Locker) lookAfter(n *node) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.admitting, n.index)
	}()
	log := l.cfg.Logger.With("node", n.name)
	if !l.cfg.Embedded {
		// Somebody may be in the middle of a first start, which needs no quarantine.
		if pause(l.ctx, 2*jitter()) != nil {
			return
		}
	}
	if st := n.state(l.ctx); st.err == nil && st.admitted {
		return
	}
	log.Warn("node is new or lost its data or its run; it grants nothing until its quarantine is over")
	for {
		err := l.Readmit(l.ctx, n.name)
		if err == nil {
			log.Info("node is admitted again")
			return
		}
		if l.ctx.Err() != nil {
			return
		}
		log.Warn("node could not be admitted yet", "error", err)
		if pause(l.ctx, time.Second+jitter()) != nil {
			return
		}
	}
}

func (l *Locker) nodeNamed(name string) (*node, error) {
	for _, n := range l.nodes {
		if n.name == name {
			return n, nil
		}
	}
	return nil, &fence.InvalidError{Field: "node", Reason: fmt.Sprintf("%q is not in this group", name)}
}

// admitBegin runs admit_begin.lua and loads the bound scripts, all or nothing: in
// one MULTI/EXEC, so that no restart can come between. That of the admission's
// end is one of them: a node that restarts in between has lost it, whatever it
// has of its data. The others do nothing before that end, and it loads nothing,
// so that it may be repeated.
func (n *node) admitBegin(ctx context.Context, nonce string, quarantine time.Duration, dead string) error {
	var result *redis.Cmd
	_, err := n.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		result = tx.Eval(ctx, admitBeginText, []string{n.keys.h, n.keys.q}, nonce, quarantine.Milliseconds(), dead)
		for _, text := range boundTexts {
			tx.ScriptLoad(ctx, bindText(*text, nonce))
		}
		return nil
	})
	if err != nil {
		return serverError(err)
	}
	values, err := result.Slice()
	if err != nil {
		return serverError(err)
	}
	switch integer(values, 0) {
	case 1:
		return nil
	case 2:
		return &quarantineError{node: n.name, left: time.Duration(integer(values, 1)) * time.Millisecond}
	}
	return errRace
}

// admit runs admit.lua.
func (n *node) admit(ctx context.Context, nonce string, base int64, maxTTL time.Duration) error {
	reign := ""
	if n.cfg.watched() {
		reign = "reign"
	}
	values, err := n.client.EvalSha(ctx, bindScripts(nonce).sha[admitKind], []string{n.keys.h, n.keys.q},
		strconv.FormatInt(base, 10), maxTTL.Milliseconds(), reign).Slice()
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return errRestarted
	case err != nil:
		return serverError(err)
	}
	switch integer(values, 0) {
	case 1:
		return nil
	case 2:
		return &quarantineError{node: n.name, left: time.Duration(integer(values, 1)) * time.Millisecond}
	case 3:
		return errStaleBase
	}
	return errRace
}
