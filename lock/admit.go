package lock

import (
	"context"
	"errors"
	"fmt"
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

// Admission is the admission of a node to its group, from its beginning to its end.
type Admission struct {
	Node       string
	Nonce      string        // identifies the new incarnation
	Base       int64         // every later token that needs this node is higher
	Quarantine time.Duration // how long the node grants nothing, unless it is shortened

	begun   instant          // after the nonce was written; zero if another process began the admission
	longest fence.LongestTTL // read after that; zero if it is not recorded
	intact  bool             // the node was parked, or is durable, and has lost nothing
}

// askEvery is the interval of asking the other nodes, or of checking another process's admission.
const askEvery = 2 * time.Second

var (
	errAdmitted  = errors.New("node is admitted already")
	errRace      = errors.New("another admission of the node has begun")
	errRestarted = errors.New("the node has lost its run or its data since the admission began")
	errOthers    = errors.New("another process is ending its admission of the node")
	errStaleBase = errors.New("the node has a higher epoch already")
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

// AdmitBegin begins to admit a node that lost its data or was restarted: it writes the new incarnation's nonce and
// the quarantine to the node, and only then raises the epoch. (If the epoch was raised before the nonce was written,
// a slow second admission made tokens fall.) [Locker.Admit] completes it. If this Locker began an admission of the
// node before and an error stopped it, AdmitBegin continues that one.
//
// It needs an EpochStore, or an Armer, which guarantees rising tokens by itself, or a quorum of other admitted nodes,
// which then keep the epoch.
func (l *Locker) AdmitBegin(ctx context.Context, node string) (Admission, error) {
	n, err := l.nodeNamed(node)
	if err != nil {
		return Admission{}, err
	}
	return l.admission(ctx, n, false)
}

// admission is AdmitBegin. If patient, it first lets another process complete the admission that it began.
func (l *Locker) admission(ctx context.Context, n *node, patient bool) (a Admission, err error) {
	if l.keepsEpoch() && len(l.nodes) == 1 {
		return Admission{}, fmt.Errorf("admit %s: an epoch store is needed, or tokens could fall: set Config.Epochs", n.name)
	}
	a = l.take(n)
	states := l.states(ctx)
	if err = l.mayBegin(n, &a, states, patient); err == nil && a.Nonce == "" {
		a, err = l.write(ctx, n, states)
	}
	if err == nil && a.begun == (instant{}) {
		a.begun = now()
	}
	if err == nil && a.Base == 0 {
		a.Base, err = l.newBase(ctx, states, n)
	}
	if err == nil && l.longest.store != nil && a.longest.Record == 0 {
		a.longest, err = l.longestFor(ctx, a, states)
	}
	if err != nil {
		l.keep(n, a, err)
		return Admission{}, fmt.Errorf("admit %s: %w", n.name, err)
	}
	a.intact = l.unbroken(ctx, n, states[n.index], a)
	return a, nil
}

// longestFor reads the longest TTL in use for an admission whose nonce is written: by then, every lease that the node
// lost is covered by the record. If the quarantine is too short for it, because longer leases were allowed earlier or
// elsewhere, the quarantine starts over. A record that is not kept may be too low, so it shortens no quarantine, but
// it lengthens one: a TTL that it has may be in use.
func (l *Locker) longestFor(ctx context.Context, a Admission, states []nodeState) (fence.LongestTTL, error) {
	longest, err := l.recorded(ctx, l.cfg.DefaultTTL)
	longest.Kept = longest.Kept && !doubts(states, longest)
	if err == nil && longest.TTL > a.Quarantine && !l.cfg.BestEffort {
		err = errRace
	}
	if err != nil {
		return fence.LongestTTL{}, err
	}
	return longest, nil
}

// mayBegin says why a node cannot be admitted now; nil: an admission may begin, or this process's own, a, continues.
// If the node no longer has a, mayBegin sets a to zero.
func (l *Locker) mayBegin(n *node, a *Admission, states []nodeState, patient bool) error {
	st := states[n.index]
	if st.err == nil && (st.pending != a.Nonce || st.void || st.quarantine > a.Quarantine) { // longer: the clock was set back
		*a = Admission{}
	}
	switch other := inOtherMode(states); {
	case other != nil:
		return other
	case l.keepsEpoch() && !st.admitted && admitted(states) < l.quorum:
		return fmt.Errorf("without Config.Epochs the epoch is kept by the nodes, and %d other admitted ones are needed; there are %d",
			l.quorum, admitted(states))
	case st.err != nil:
		return st.err
	case st.admitted:
		return errAdmitted
	case a.Nonce != "" || st.pending == "" || st.void:
		return nil
	case l.cfg.BestEffort && !isBestEffort(st.pending): // the quarantine of a strict one is not awaited
		return nil
	case st.quarantine > 0 && st.quarantine <= l.cfg.MaxTTL: // another process's; each beginning leaves its scripts
		return &quarantineError{node: n.name, left: st.quarantine}
	case patient && st.quarantine == 0 && !l.cfg.Embedded && l.waitsForOther(n, st.pending):
		return errOthers
	}
	return nil
}

// write begins an admission on its node. After an error the node may have it all the same.
func (l *Locker) write(ctx context.Context, n *node, states []nodeState) (Admission, error) {
	longest := l.longestKnown(states)
	if l.cfg.Embedded || l.cfg.BestEffort {
		longest = 0
	}
	a := Admission{Node: n.name, Nonce: l.newNonce(), Quarantine: longest}
	return a, n.admitBegin(ctx, a.Nonce, longest, states[n.index])
}

// longestKnown is the longest TTL that any process may have used, as far as it is known.
func (l *Locker) longestKnown(states []nodeState) time.Duration {
	longest := max(l.cfg.MaxTTL, time.Duration(l.longest.seen.Load()))
	for _, st := range states {
		longest = max(longest, st.maxTTL)
	}
	return longest
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

// Admit completes an admission after its quarantine. It shortens the quarantine if possible: a little more than a
// second after the admission began, it asks N/2+1 other nodes how long their locks last. While the quarantine runs
// the error is [ErrQuarantined]. Before the node is admitted it gets copies of the others' locks, so that leases
// survive the restart of the next node. After any other error the admission is void, or the node could not be asked:
// begin again, or use [Locker.Readmit], which continues if possible.
func (l *Locker) Admit(ctx context.Context, a Admission) error {
	n, err := l.nodeNamed(a.Node)
	if err != nil {
		return err
	}
	given, err := l.prepare(ctx, n, a)
	if err == nil {
		var most fence.LongestTTL
		if most, err = l.maximum(ctx, a.longest); err == nil {
			err = n.admit(ctx, a.Nonce, a.Base, most)
		}
	}
	if err != nil {
		return fmt.Errorf("admit %s: %w", a.Node, err)
	}
	l.takeBack(ctx, n, a, given)
	l.even(ctx)
	return nil
}

// prepare shortens the quarantine if possible, and copies locks to the node once it is over.
func (l *Locker) prepare(ctx context.Context, n *node, a Admission) (given []heldLock, err error) {
	if l.cfg.Embedded {
		return nil, nil
	}
	left, err := n.inQuarantine(ctx)
	if err == nil && left > 0 && (a.intact || a.begun != (instant{}) && a.begun.add(l.askAfter()).passed()) {
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
	if err != nil {
		return 0, serverError(err)
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
	if !l.cfg.Embedded && !l.cfg.BestEffort {
		// Another process may be in the middle of a first start, which needs no quarantine.
		if pause(l.ctx, 2*jitter()) != nil {
			return
		}
	}
	if !l.leftByInit() {
		return
	}
	if st := n.state(l.ctx); st.err == nil && (st.admitted || st.resting) || l.mayAdmit(l.ctx) != nil { // it is found lost again
		return
	}
	log.Warn("node is new, lost its data or was restarted; it grants nothing until " + l.cfg.admittedWhen())
	for told := ""; ; {
		err := l.Readmit(l.ctx, n.name)
		if err == nil {
			log.Info("node is admitted again")
			return
		}
		if l.ctx.Err() != nil {
			return
		}
		if !errors.Is(err, ErrMode) || told != err.Error() { // lasts until an operator repairs it
			log.Warn("node could not be admitted yet", "error", err)
			told = err.Error()
		}
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

// admitBegin runs admit_begin.lua and loads the bound scripts in one MULTI/EXEC, so that a restart can't come
// between. One of them ends the admission: a node that restarts in between has lost it, whatever it keeps of its
// data. The other scripts do nothing before that end. They are not loaded again there, so the end may be repeated.
func (n *node) admitBegin(ctx context.Context, nonce string, quarantine time.Duration, st nodeState) error {
	void := ""
	if st.void || n.cfg.bestEffort {
		void = st.pending
	}
	var result *redis.Cmd
	_, err := n.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		result = tx.Eval(ctx, admitBeginText, []string{n.keys.h, n.keys.q}, nonce, n.quarantineMS(quarantine), st.incarnation, void)
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
func (n *node) admit(ctx context.Context, nonce string, base int64, most fence.LongestTTL) error {
	reign := ""
	if n.cfg.watched() {
		reign = "reign"
	}
	values, err := n.client.EvalSha(ctx, bindScripts(nonce).sha[admitKind], []string{n.keys.h, n.keys.q},
		strconv.FormatInt(base, 10), most.TTL.Milliseconds(), reign, most.Record, n.durableMark(ctx)).Slice()
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
