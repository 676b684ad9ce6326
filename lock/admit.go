package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
)

// epochShift places the epoch above the 32 bits that count acquisitions;
// maxEpoch keeps tokens below 2^53, which Lua's numbers hold exactly.
const (
	epochShift = 32
	maxEpoch   = 1<<21 - 1
)

// admission is the admission of a node to its group, from its beginning to its end.
type admission struct {
	nonce      string        // identifies the new incarnation
	base       int64         // every later token that needs this node is higher
	quarantine time.Duration // how long the node grants nothing, unless it is shortened
	longest    time.Duration // the longest TTL that a lease may have

	begun  clock.Instant // after the nonce was written; zero if another process began the admission
	intact bool          // the node is durable and has lost nothing
}

// askEvery is the interval of asking the other nodes, or of checking another process's admission.
const askEvery = 2 * time.Second

var (
	errAdmitted  = errors.New("node is admitted already")
	errRace      = errors.New("another admission of the node has begun")
	errNewID     = errors.New("the node has a new replication id, and a process that watched it may know that it has lost nothing")
	errRestarted = errors.New("the node has lost its run or its data since the admission began")
	errOthers    = errors.New("another process is ending its admission of the node")
	errStaleBase = errors.New("the node has a higher epoch already")
	errEpochLost = errors.New("without a database the nodes keep the epoch")
)

// quarantineError says that a quarantine runs, and for how long.
type quarantineError struct {
	node string
	left time.Duration
}

func (e *quarantineError) Error() string {
	return fmt.Sprintf("%s is in quarantine for another %v, until every lease it may have granted is over", e.node, e.left)
}

func (e *quarantineError) Is(target error) bool { return target == ErrQuarantined }

// admission begins to admit a node that lost its data or was restarted: it writes the new incarnation's nonce and the
// quarantine to the node, and only then raises the epoch. (If the epoch was raised before the nonce was written, a slow
// second admission made tokens fall.) If this Locker began an admission of the node before and an error stopped it,
// that one continues. Another process that began one is left to end it.
func (l *Locker) admission(ctx context.Context, n *node) (a admission, err error) {
	a = l.take(n)
	states := l.states(ctx)
	if err = l.mayBegin(n, &a, states); err == nil && a.nonce == "" {
		a, err = l.write(ctx, n, states)
	}
	if err == nil && a.begun.IsZero() {
		a.begun = l.clock.Now()
	}
	if err == nil && a.base == 0 {
		a.base, err = l.newBase(ctx, states, n)
	}
	if err != nil {
		l.keep(n, a, err)
		return admission{}, fmt.Errorf("admit %s: %w", n.name, err)
	}
	a.intact = l.unbroken(ctx, n, states[n.index], a)
	return a, nil
}

// mayBegin says why a node cannot be admitted now; nil: an admission may begin, or this process's own, a, continues.
// If the node no longer has a, mayBegin sets a to zero.
func (l *Locker) mayBegin(n *node, a *admission, states []nodeState) error {
	st := states[n.index]
	if st.err == nil && (st.pending != a.nonce || st.void || st.quarantine > a.quarantine) { // longer: the clock was set back
		*a = admission{}
	}
	switch other := inOtherMode(states); {
	case other != nil:
		return other
	case l.keepsEpoch() && epochElsewhere(states):
		return errEpochElsewhere
	case l.keepsEpoch() && !st.admitted && admitted(states) < l.quorum:
		return fmt.Errorf("%w: %d other admitted ones are needed, and there are %d; go on with Locker.Init and Above, or fencegate nodes init --above TOKEN",
			errEpochLost, l.quorum, admitted(states))
	case st.err != nil:
		return st.err
	case st.admitted:
		return errAdmitted
	case l.keepsReign(l.ctx, n, st):
		return errNewID
	case a.nonce != "" || st.pending == "" || st.void:
		return nil
	case l.cfg.BestEffort && !isBestEffort(st.pending): // the quarantine of a strict one is not awaited
		return nil
	case st.quarantine > 0 && st.quarantine <= l.quarantine(states): // another process's; each beginning leaves its scripts
		return &quarantineError{node: n.name, left: st.quarantine}
	case st.quarantine == 0 && !l.cfg.Embedded && l.waitsForOther(n, st.pending):
		return errOthers
	}
	return nil
}

// write begins an admission on its node. After an error the node may have it all the same.
func (l *Locker) write(ctx context.Context, n *node, states []nodeState) (admission, error) {
	st := states[n.index]
	if st.over != nil {
		var err error
		if st.incarnation, err = l.depose(ctx, n, st); err != nil {
			return admission{}, err
		}
	}
	_, longest := l.limits(states)
	a := admission{nonce: l.newNonce(), quarantine: longest, longest: longest}
	if l.cfg.Embedded || l.cfg.BestEffort {
		a.quarantine = 0
	}
	return a, n.admitBegin(ctx, a.nonce, a.quarantine, 0, st)
}

// keepsEpoch reports whether the nodes themselves keep the epoch.
func (l *Locker) keepsEpoch() bool {
	return l.cfg.Epochs == nil && l.cfg.Armer == nil && !l.cfg.Embedded
}

// newBase raises the epoch above that of every reachable node. n is the node to be admitted, or nil.
func (l *Locker) newBase(ctx context.Context, states []nodeState, n *node) (int64, error) {
	var above int64
	for _, st := range states {
		above = max(above, st.base>>epochShift)
	}
	epoch, err := above+1, error(nil)
	switch {
	case l.keepsEpoch():
		epoch, err = l.agreeEpoch(ctx, n, above)
	case l.cfg.Epochs != nil && !l.cfg.Embedded:
		epoch, err = l.cfg.Epochs.RaiseEpoch(ctx, above)
	}
	if err != nil {
		return 0, fmt.Errorf("raise the epoch above %d: %w", above, err)
	}
	if epoch <= above || epoch > maxEpoch {
		return 0, fmt.Errorf("epoch %d is unusable: it must be over %d and at most %d", epoch, above, maxEpoch)
	}
	return epoch << epochShift, nil
}

// end completes an admission after its quarantine. It shortens the quarantine if possible: a little more than a second
// after the admission began, it asks N/2+1 other nodes how long their locks last. While the quarantine runs the error
// is [ErrQuarantined]. Before the node is admitted it gets copies of the others' locks, so that leases survive the
// restart of the next node. After any other error the admission is void, or the node could not be asked.
func (l *Locker) end(ctx context.Context, n *node, a admission) error {
	given, err := l.prepare(ctx, n, a)
	if err == nil {
		group, _ := l.limits(l.states(ctx))
		err = n.admit(ctx, a.nonce, a.base, group, l.cfg.Epochs != nil)
	}
	if err != nil {
		return fmt.Errorf("admit %s: %w", n.name, err)
	}
	l.takeBack(ctx, n, a, given)
	return nil
}

// prepare shortens the quarantine if possible, and copies locks to the node once it is over.
func (l *Locker) prepare(ctx context.Context, n *node, a admission) (given []heldLock, err error) {
	if l.cfg.Embedded {
		return nil, nil
	}
	left, err := n.inQuarantine(ctx)
	if err == nil && left > 0 && (a.intact || !a.begun.IsZero() && a.begun.Add(l.askAfter()).Passed()) {
		if err = l.shorten(ctx, n, a); err == nil {
			left, err = n.inQuarantine(ctx)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case left > 0:
		return nil, &quarantineError{node: n.name, left: left}
	}
	if given, err = l.give(ctx, n, a); err != nil {
		return nil, err
	}
	return l.takeBack(ctx, n, a, given), nil
}

// inQuarantine is the remaining time of the node's quarantine; 0: none.
func (n *node) inQuarantine(ctx context.Context) (time.Duration, error) {
	left, err := n.client.PTTL(ctx, n.keys.q).Result()
	switch {
	case err != nil:
		return 0, serverError(err)
	case left == 0: // its last millisecond; a key that does not exist is negative
		return time.Millisecond, nil
	}
	return max(0, left), nil
}

// admitsByItself reports whether lost nodes are admitted automatically.
func (l *Locker) admitsByItself() bool { return l.cfg.Armer != nil || l.cfg.Embedded }

// admitter is an Armer that says whether this process may admit nodes. The keys may belong to another database, whose
// processes admit the nodes, with the longest TTL that they allow.
type admitter interface {
	MayAdmit(ctx context.Context) error
}

func (l *Locker) mayAdmit(ctx context.Context) error {
	if a, ok := l.cfg.Armer.(admitter); ok {
		return a.MayAdmit(ctx)
	}
	return nil
}

// nodeLost starts the admission of a node that is not admitted any more, if that is automatic.
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
	wait := 2 * l.dice.jitter() // drawn here: several nodes may be found lost at one time
	l.background.Go(func() { l.lookAfter(n, wait) })
}

// lookAfter admits a lost node after a while, however long it takes.
func (l *Locker) lookAfter(n *node, wait time.Duration) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.admitting, n.index)
	}()
	log := l.cfg.Logger.With("node", n.name)
	if !l.cfg.Embedded && !l.cfg.BestEffort {
		// Another process may be in the middle of a first start, which needs no quarantine.
		if pause(l.ctx, wait) != nil {
			return
		}
	}
	if !l.leftByInit() {
		return
	}
	st := n.state(l.ctx)
	if st.err == nil && st.admitted || l.keepsReign(l.ctx, n, st) || l.mayAdmit(l.ctx) != nil { // it is found lost again
		return
	}
	log.Warn("node is new, lost its data or was restarted; it grants nothing until " + l.cfg.admittedWhen())
	for told := ""; ; {
		err := l.admit(l.ctx, n)
		if err == nil {
			log.Info("node is admitted again")
			return
		}
		if l.ctx.Err() != nil {
			return
		}
		if told != err.Error() { // some last until an operator repairs it
			log.Warn("node could not be admitted yet", "error", err)
			told = err.Error()
		}
		if pause(l.ctx, time.Second+l.dice.jitter()) != nil {
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

// admitBegin runs admit_begin.lua and loads the bound scripts in one MULTI/EXEC, so that a restart can't come
// between. One of them ends the admission: a node that restarts in between has lost it, whatever it keeps of its
// data. The other scripts do nothing before that end. They are not loaded again there, so the end may be repeated.
// first is the longest TTL that a first start grants, otherwise 0.
func (n *node) admitBegin(ctx context.Context, nonce string, quarantine, first time.Duration, st nodeState) error {
	void := ""
	if st.void || n.cfg.bestEffort {
		void = st.pending
	}
	var result *redis.Cmd
	_, err := n.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		result = tx.Eval(ctx, admitBeginText, []string{n.keys.h, n.keys.q}, nonce, n.quarantineMS(quarantine), st.incarnation, void, first.Milliseconds())
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
func (n *node) admit(ctx context.Context, nonce string, base int64, group limits, stored bool) error {
	store := ""
	if stored {
		store = "stored"
	}
	values, err := n.client.EvalSha(ctx, bindScripts(nonce).sha[admitKind], []string{n.keys.h, n.keys.q},
		strconv.FormatInt(base, 10), group.granted.Milliseconds(), group.longest.Milliseconds(), store, n.durableMark(ctx)).Slice()
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
