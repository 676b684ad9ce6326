package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// Admit is admin.Admin.Admit.
func (g *Group) Admit(ctx context.Context, node string) error {
	if err := g.AwaitKeys(ctx); err != nil {
		return err
	}
	n, err := g.NodeOf(node)
	if err != nil {
		return err
	}
	return g.admit(ctx, n)
}

func (g *Group) admit(ctx context.Context, n *node.Node) error {
	var seen another
	for {
		a, err := g.Begin(ctx, n)
		wait := a.Begun.Add(min(a.quarantine, g.AskAfter())).Left()
		if a.intact {
			wait = 0
		}
		for err == nil {
			if err = Pause(ctx, wait); err != nil {
				break
			}
			err = g.End(ctx, n, a)
			if err == nil {
				g.forget(n)
				return nil
			}
			quarantine, ok := errors.AsType[*node.QuarantineError](err)
			switch {
			case ok && quarantine.Left <= a.quarantine:
				wait, err = min(quarantine.Left+time.Millisecond, askEvery+g.cfg.Dice.jitter()), nil
			case ok: // the node's clock was set back: begin again
				err = node.ErrRace
			}
		}
		g.keep(n, a, err)
		var quarantine *node.QuarantineError
		switch {
		case errors.Is(err, errAdmitted):
			g.forget(n)
			return nil
		case errors.Is(err, ErrOthers), errors.Is(err, errNewID):
			err = Pause(ctx, askEvery/4+g.cfg.Dice.jitter())
		case errors.As(err, &quarantine): // another process's
			seen.hasten(ctx, g, n)
			err = Pause(ctx, seen.again(g, quarantine.Left))
		case voids(err):
			err = Pause(ctx, g.cfg.Dice.jitter())
		}
		if err != nil {
			return err
		}
	}
}

// take returns this Locker's own admission of a node that an error stopped, if there is one. It is the caller's then,
// who may keep it again.
func (g *Group) take(n *node.Node) Admission {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.begun[n.Index]
	delete(g.begun, n.Index)
	return a
}

// keep stores an admission after an error, unless it is void. Otherwise its quarantine would be awaited to the end,
// like another process's, before a new one could begin.
func (g *Group) keep(n *node.Node, a Admission, err error) {
	stale := errors.Is(err, node.ErrStaleBase)
	if a.Nonce == "" || errors.Is(err, errAdmitted) || voids(err) && !stale {
		return
	}
	if stale {
		a.Base = 0 // a new epoch is sufficient
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun[n.Index] = a
}

// EndPatience is how long another process may take, after a quarantine, to read the other nodes' locks and to copy
// them to the node, which takes seconds for many thousands. A process that has died makes the others wait that long. No process
// completes another's admission: after the quarantine nothing on the node says how long it was.
const EndPatience = 10 * time.Second

// overdue is an admission of another process whose quarantine is over.
type overdue struct {
	nonce string
	until clock.Instant // when a new one may begin, EndPatience after this process first saw it over
	times int           // how many before it were over and replaced
}

// waitsForOther reports whether another process's admission, whose quarantine is over, is still left to that process.
// If processes replaced admissions that others are completing, the node would stay out forever, so the patience grows
// each time.
func (g *Group) waitsForOther(n *node.Node, nonce string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.overdue[n.Index]
	if o.nonce != nonce {
		if o.nonce != "" {
			o.times = min(o.times+1, 5)
		}
		wait := EndPatience << o.times
		o.nonce, o.until = nonce, g.cfg.Clock.Now().Add(wait+g.cfg.Dice.Random(wait/2))
		g.overdue[n.Index] = o
	}
	return !o.until.Passed()
}

// EndWait ends the wait for another process's admission of a node, and reports whether there was one.
func (g *Group) EndWait(n *node.Node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, waits := g.overdue[n.Index]
	if waits {
		o.until = g.cfg.Clock.Now()
		g.overdue[n.Index] = o
	}
	return waits
}

// forget clears the record of another's admission, once the node is admitted.
func (g *Group) forget(n *node.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.overdue, n.Index)
}

// voids reports whether an admission has to begin again.
func voids(err error) bool {
	return errors.Is(err, node.ErrRace) || errors.Is(err, node.ErrRestarted) || errors.Is(err, node.ErrStaleBase)
}

// epochShift places the epoch above the 32 bits that count acquisitions;
// maxEpoch keeps tokens below 2^53, which Lua's numbers hold exactly.
const (
	epochShift = 32
	maxEpoch   = 1<<21 - 1
)

// Admission is the admission of a node to its group, from its beginning to its end.
type Admission struct {
	Nonce      string        // identifies the new incarnation
	Base       int64         // every later token that needs this node is higher
	quarantine time.Duration // how long the node grants nothing, unless it is shortened
	longest    time.Duration // the longest TTL that a lease may have

	Begun  clock.Instant // after the nonce was written; zero if another process began the admission
	intact bool          // the node is durable and has lost nothing
}

// askEvery is the interval of asking the other nodes, or of checking another process's admission.
const askEvery = 2 * time.Second

// ErrOthers: another process is ending its admission of the node.
var ErrOthers = errors.New("another process is ending its admission of the node")

var (
	errAdmitted  = errors.New("node is admitted already")
	errNewID     = errors.New("the node has a new replication id, and a process that watched it may know that it has lost nothing")
	errEpochLost = errors.New("without a database the nodes keep the epoch")
)

// Begin begins to admit a node that lost its data or was restarted: it writes the new incarnation's nonce and the
// quarantine to the node, and only then raises the epoch. (If the epoch was raised before the nonce was written, a slow
// second admission made tokens fall.) If this Locker began an admission of the node before and an error stopped it,
// that one continues. Another process that began one is left to end it.
func (g *Group) Begin(ctx context.Context, n *node.Node) (a Admission, err error) {
	a = g.take(n)
	states := g.States(ctx)
	if err = g.mayBegin(n, &a, states); err == nil && a.Nonce == "" {
		a, err = g.write(ctx, n, states)
	}
	if err == nil && a.Begun.IsZero() {
		a.Begun = g.cfg.Clock.Now()
	}
	if err == nil && a.Base == 0 {
		a.Base, err = g.NewBase(ctx, states, n)
	}
	if err != nil {
		g.keep(n, a, err)
		return Admission{}, fmt.Errorf("admit %s: %w", n.Name, err)
	}
	a.intact = g.unbroken(ctx, n, states[n.Index], a)
	return a, nil
}

// mayBegin says why a node cannot be admitted now; nil: an admission may begin, or this process's own, a, continues.
// If the node no longer has a, mayBegin sets a to zero.
func (g *Group) mayBegin(n *node.Node, a *Admission, states []node.State) error {
	st := states[n.Index]
	if st.Err == nil && (st.Pending != a.Nonce || st.Void || st.Quarantine > a.quarantine) { // longer: the clock was set back
		*a = Admission{}
	}
	switch other := inOtherMode(states); {
	case other != nil:
		return other
	case g.keepsEpoch() && epochElsewhere(states):
		return errEpochElsewhere
	case g.keepsEpoch() && !st.Admitted && admitted(states) < g.Quorum:
		return fmt.Errorf("%w: %d other admitted ones are needed, and there are %d; go on with Admin.InitAbove or fencegate nodes init --above TOKEN",
			errEpochLost, g.Quorum, admitted(states))
	case st.Err != nil:
		return st.Err
	case st.Admitted:
		return errAdmitted
	case g.keepsReign(g.ctx, n, st):
		return errNewID
	case a.Nonce != "" || st.Pending == "" || st.Void:
		return nil
	case g.cfg.BestEffort && !node.IsBestEffort(st.Pending): // the quarantine of a strict one is not awaited
		return nil
	case st.Quarantine > 0 && st.Quarantine <= g.quarantine(states): // another process's; each beginning leaves its scripts
		return &node.QuarantineError{Node: n.Name, Left: st.Quarantine}
	case st.Quarantine == 0 && !g.cfg.Embedded && g.waitsForOther(n, st.Pending):
		return ErrOthers
	}
	return nil
}

// write begins an admission on its node. After an error the node may have it all the same.
func (g *Group) write(ctx context.Context, n *node.Node, states []node.State) (Admission, error) {
	st := states[n.Index]
	if st.Over != nil {
		var err error
		if st.Incarnation, err = g.depose(ctx, n, st); err != nil {
			return Admission{}, err
		}
	}
	_, longest := g.Limits(states)
	a := Admission{Nonce: g.NewNonce(), quarantine: longest, longest: longest}
	if g.cfg.Embedded || g.cfg.BestEffort {
		a.quarantine = 0
	}
	return a, n.AdmitBegin(ctx, a.Nonce, a.quarantine, 0, st)
}

// End completes an admission after its quarantine. It shortens the quarantine if possible: a little more than a second
// after the admission began, it asks N/2+1 other nodes how long their locks last. While the quarantine runs the error
// is [ErrQuarantined]. Before the node is admitted it gets copies of the others' locks, so that leases survive the
// restart of the next node. After any other error the admission is void, or the node could not be asked.
func (g *Group) End(ctx context.Context, n *node.Node, a Admission) error {
	given, err := g.prepare(ctx, n, a)
	if err == nil {
		group, _ := g.Limits(g.States(ctx))
		err = n.Admit(ctx, a.Nonce, a.Base, group, g.cfg.Epochs != nil)
	}
	if err != nil {
		return fmt.Errorf("admit %s: %w", n.Name, err)
	}
	g.takeBack(ctx, n, a, given)
	return nil
}

// prepare shortens the quarantine if possible, and copies locks to the node once it is over.
func (g *Group) prepare(ctx context.Context, n *node.Node, a Admission) (given []node.HeldLock, err error) {
	if g.cfg.Embedded {
		return nil, nil
	}
	left, err := n.InQuarantine(ctx)
	if err == nil && left > 0 && (a.intact || !a.Begun.IsZero() && a.Begun.Add(g.AskAfter()).Passed()) {
		if err = g.shorten(ctx, n, a); err == nil {
			left, err = n.InQuarantine(ctx)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case left > 0:
		return nil, &node.QuarantineError{Node: n.Name, Left: left}
	}
	if given, err = g.give(ctx, n, a); err != nil {
		return nil, err
	}
	return g.takeBack(ctx, n, a, given), nil
}

// admitsByItself reports whether lost nodes are admitted automatically.
func (g *Group) admitsByItself() bool { return g.cfg.Armer != nil || g.cfg.Embedded }

// admitter is an Armer that says whether this process may admit nodes. The keys may belong to another database, whose
// processes admit the nodes, with the longest TTL that they allow.
type admitter interface {
	MayAdmit(ctx context.Context) error
}

func (g *Group) mayAdmit(ctx context.Context) error {
	if a, ok := g.cfg.Armer.(admitter); ok {
		return a.MayAdmit(ctx)
	}
	return nil
}

// nodeLost starts the admission of a node that is not admitted any more, if that is automatic.
func (g *Group) nodeLost(n *node.Node) {
	if !g.admitsByItself() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.admissions[n.Index] {
		return
	}
	wait := 2 * g.cfg.Dice.jitter() // drawn here: several nodes may be found lost at one time
	g.admissions[n.Index] = g.life.InBackground(func(context.Context) { g.lookAfter(n, wait) })
}

// lookAfter admits a lost node after a while, however long it takes.
func (g *Group) lookAfter(n *node.Node, wait time.Duration) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.admissions, n.Index)
	}()
	log := g.cfg.Logger.With("node", n.Name)
	if !g.cfg.Embedded && !g.cfg.BestEffort {
		// Another process may be in the middle of a first start, which needs no quarantine.
		if Pause(g.ctx, wait) != nil {
			return
		}
	}
	if !g.leftByInit() {
		return
	}
	st := n.State(g.ctx)
	if st.Err == nil && st.Admitted || g.keepsReign(g.ctx, n, st) || g.mayAdmit(g.ctx) != nil { // it is found lost again
		return
	}
	log.Warn("node is new, lost its data or was restarted; it grants nothing until " + g.cfg.admittedWhen())
	for logged := ""; ; {
		err := g.admit(g.ctx, n)
		if err == nil {
			log.Info("node is admitted again")
			return
		}
		if g.ctx.Err() != nil {
			return
		}
		if logged != err.Error() { // some last until an operator repairs it
			log.Warn("node could not be admitted yet", "error", err)
			logged = err.Error()
		}
		if Pause(g.ctx, time.Second+g.cfg.Dice.jitter()) != nil {
			return
		}
	}
}

func (g *Group) NodeOf(name string) (*node.Node, error) {
	for _, n := range g.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, &fence.InvalidError{Field: "node", Reason: fmt.Sprintf("%q is not in this group", name)}
}

// RoundTime is how long after a round's first message its answers count; it is the same in the whole group. A lost
// node is admitted based on the other nodes' locks. If they are asked at least roundTime after the admission began,
// their locks include every lease that a round could complete with the lost node's earlier answer.
const RoundTime = time.Second

// another is this process's view of an admission that another process began.
type another struct {
	nonce string
	since clock.Instant // this process first saw the nonce
}

// hasten shortens the quarantine of an admission that another process began and may have died before it shortened it.
// The nonce was written before this process first saw it, so the other nodes are asked a round's time after that.
// After an error the next look tries again.
func (seen *another) hasten(ctx context.Context, g *Group, n *node.Node) {
	nonce, whole, err := n.UnderWay(ctx)
	if err != nil || whole == 0 {
		return
	}
	if seen.nonce != nonce {
		*seen = another{nonce: nonce, since: g.cfg.Clock.Now()}
	}
	if !seen.since.Add(g.AskAfter()).Passed() {
		return
	}
	a := Admission{Nonce: nonce, quarantine: whole, Begun: seen.since}
	if err := g.shorten(ctx, n, a); err != nil && ctx.Err() == nil {
		g.cfg.Logger.Warn("the quarantine that another process began could not be shortened yet", "node", n.Name, "error", err)
	}
}

// again is the time to the next look at another's admission whose quarantine lasts left.
func (seen *another) again(g *Group, left time.Duration) time.Duration {
	if ask := seen.since.Add(g.AskAfter()).Left(); ask > 0 {
		left = min(left, ask)
	}
	return min(left, askEvery) + g.cfg.Dice.jitter()
}

// AskAfter is when the other nodes are asked, on this machine's clock: roundTime plus the possible clock drift.
func (g *Group) AskAfter() time.Duration {
	return RoundTime + time.Duration(float64(RoundTime)*g.cfg.DriftFactor) + DriftFloor
}

// lockList is a node's list of its locks; ok: it is admitted, and was in one run throughout.
type lockList struct {
	ok    bool
	locks []node.HeldLock
}

// askOthers reads the locks of all nodes but one.
func (g *Group) askOthers(ctx context.Context, except *node.Node) []lockList {
	all := make([]lockList, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		if n != except {
			locks, err := n.Locks(ctx)
			all[i] = lockList{err == nil, locks}
		}
	})
	return all
}

// lasting is how long a lock that a lost node granted may still count, according to the other nodes. It is not ok if
// too few of them answered, or one has a lock that never expires.
//
// A lease that needed the lost node has locks on N/2 others, so at least one of any N/2+1 others has such a lock.
// Locks on a minority count too.
func (g *Group) lasting(all []lockList) (left time.Duration, ok bool) {
	asked := 0
	for _, t := range all {
		if !t.ok {
			continue
		}
		asked++
		for _, held := range t.locks {
			if held.Left < 0 {
				return 0, false
			}
			left = max(left, held.Left+time.Millisecond)
		}
	}
	return left, asked >= g.Quorum
}

// shorten shortens a node's quarantine, if enough other nodes answered.
func (g *Group) shorten(ctx context.Context, n *node.Node, a Admission) error {
	if a.intact {
		return n.Shorten(ctx, a.Nonce, a.quarantine, 0)
	}
	left, ok := g.lasting(g.askOthers(ctx, n))
	if !ok {
		return nil
	}
	return n.Shorten(ctx, a.Nonce, a.quarantine, left)
}

// maxGiven bounds one call of give.lua, which blocks the node's other clients.
const maxGiven = 256

// give copies the locks of admitted nodes to one that is about to be admitted. It is best effort: a lease whose lock
// is not copied continues on the nodes that have it.
func (g *Group) give(ctx context.Context, n *node.Node, a Admission) ([]node.HeldLock, error) {
	given := elect(g.askOthers(ctx, n), a.longest)
	for locks := given; len(locks) > 0; {
		part := locks[:min(maxGiven, len(locks))]
		locks = locks[len(part):]
		if err := n.Give(ctx, a.Nonce, part); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// takeBack deletes the copied locks of leases that ended during the admission, and returns the rest: their release did not reach
// the node because it was not admitted. If takeBack fails, such a lock stays until its TTL is over.
func (g *Group) takeBack(ctx context.Context, n *node.Node, a Admission, given []node.HeldLock) (rest []node.HeldLock) {
	if len(given) == 0 {
		return nil
	}
	all := g.askOthers(ctx, n)
	if _, ok := g.lasting(all); !ok {
		return given
	}
	held := make(map[string]bool)
	for _, t := range all {
		for _, one := range t.locks {
			held[one.Key+one.Value] = true
		}
	}
	for _, one := range given {
		if held[one.Key+one.Value] {
			rest = append(rest, one)
			continue
		}
		_ = n.TakeBack(ctx, a.Nonce, one)
	}
	return rest
}

// elect chooses for each resource the owner that most nodes name, and among equals the one whose lock lasts longest.
// It leaves out a lock that never expires, or lasts longer than a lease can because its node's clock was set back:
// copying it would turn a minority's lock into a majority's.
func elect(all []lockList, longest time.Duration) []node.HeldLock {
	type candidate struct {
		node.HeldLock

		votes int
	}
	found := make(map[string]map[string]*candidate) // by key and owner
	for _, t := range all {
		for _, held := range t.locks {
			if held.Left <= 0 || held.Left > longest || len(held.Value) < node.OwnerLength || !t.ok {
				continue
			}
			if found[held.Key] == nil {
				found[held.Key] = make(map[string]*candidate)
			}
			owner := held.Value[:node.OwnerLength]
			c := found[held.Key][owner]
			if c == nil {
				c = &candidate{HeldLock: held}
				found[held.Key][owner] = c
			}
			c.votes++
			c.Left = max(c.Left, held.Left)
		}
	}
	chosen := make([]node.HeldLock, 0, len(found))
	for _, owners := range found {
		var best *candidate
		for _, c := range owners {
			if best == nil || c.votes > best.votes || c.votes == best.votes && c.Left > best.Left {
				best = c
			}
		}
		chosen = append(chosen, best.HeldLock)
	}
	slices.SortFunc(chosen, func(a, b node.HeldLock) int { return strings.Compare(a.Key, b.Key) })
	return chosen
}
