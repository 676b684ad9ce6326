package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Init is the first start of a group: it admits the nodes at once if they are proven empty. It accepts nodes that are
// admitted already, so each process may call it at each start, also concurrently.
//
// The proof: all nodes answer; none of them has a counter, a base or a lock; no lease was taken on any since its
// server was started; the Armer has never raised a fence; and nothing changed meanwhile.
// A group in use is not empty: a node of it that is empty has lost data, and Init leaves it to [Locker.Admit] with
// its quarantine, which starts automatically with an Armer. Init then succeeds if a quorum is admitted, and otherwise
// fails with a [*QuorumError].
//
// Without an Armer Init cannot tell a first start from a restart of all nodes without their data: then call it
// only once in the life of a group. A group without a database that lost a majority goes on by Init with [Above].
//
// At the first start the nodes get Config.MaxTTL as the group's longest TTL. Later a longer Config.MaxTTL than the
// group's is a [*fence.InvalidError]; see [Locker.SetMaxTTL].
func (l *Locker) Init(ctx context.Context, opts ...InitOption) error {
	if err := l.keyed(ctx); err != nil {
		return err
	}
	var o initOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.given {
		return l.initAbove(ctx, o.above)
	}
	return l.firstStart(ctx)
}

func (l *Locker) firstStart(ctx context.Context) error {
	l.inits.Add(1)
	l.initing.Add(1)
	defer l.initing.Add(-1)
	for {
		states := l.states(ctx)
		if over, err := l.startIsOver(states); over {
			return err
		}
		raised, err := l.raised(ctx)
		if err != nil && admitted(states) >= l.quorum {
			return nil // whatever the fence says: at most, empty nodes stay out
		}
		if err != nil {
			return fmt.Errorf("admit empty nodes: %w", err)
		}
		if raised { // perhaps for a lease on nodes that were admitted since they were asked
			states = l.states(ctx)
		}
		if !l.cfg.Embedded && (raised || !l.fresh(states)) || l.cfg.Embedded && unreachable(states) {
			if admitted(states) >= l.quorum {
				return nil
			}
			return l.notAdmitted(states)
		}
		err = l.admitFresh(ctx, states)
		switch {
		case err == nil, voids(err), errors.Is(err, ErrQuarantined):
			// Check again: another process may run Init too.
			if err != nil {
				err = pause(ctx, l.dice.jitter()/4)
			}
		}
		if err != nil {
			return fmt.Errorf("admit empty nodes: %w", err)
		}
	}
}

// startIsOver reports whether a first start is over: all nodes are admitted, or with a shorter TTL than this Locker's.
func (l *Locker) startIsOver(states []nodeState) (bool, error) {
	if err := l.checkMaxTTL(states); err != nil {
		return true, fmt.Errorf("init: %w", err)
	}
	return admitted(states) == len(states), nil
}

// raised reports whether the fence records earlier leases. An error may also come from [Locker.mayAdmit].
func (l *Locker) raised(ctx context.Context) (bool, error) {
	if err := l.mayAdmit(ctx); err != nil {
		return false, err
	}
	if l.cfg.Armer == nil || l.cfg.Embedded {
		return false, nil
	}
	return l.cfg.Armer.Raised(ctx)
}

// admitted counts the admitted nodes.
func admitted(states []nodeState) (n int) {
	for _, st := range states {
		if st.admitted {
			n++
		}
	}
	return n
}

// admitFresh admits the nodes that are not admitted. The nonces are written first, and the nodes are proven empty
// after that, so any change in between is noticeTime.
func (l *Locker) admitFresh(ctx context.Context, states []nodeState) error {
	nonces := make([]string, len(states))
	group, _ := l.limits(states)
	for i, st := range states {
		if st.admitted {
			continue
		}
		nonces[i] = l.newNonce()
		if err := l.nodes[i].admitBegin(ctx, nonces[i], 0, group.granted, st); err != nil {
			return err
		}
	}
	states = l.states(ctx)
	if !l.cfg.Embedded && !l.fresh(states) {
		return errRace
	}
	var base int64
	if l.cfg.Epochs != nil && l.cfg.Armer == nil || l.cfg.Embedded && anyBase(states) {
		var err error
		if base, err = l.newBase(ctx, states, nil); err != nil {
			return err
		}
	}
	group, _ = l.limits(states)
	for i, nonce := range nonces {
		if nonce == "" {
			continue
		}
		if err := l.nodes[i].admit(ctx, nonce, base, group, l.cfg.Epochs != nil); err != nil {
			return err
		}
	}
	return nil
}

func (l *Locker) notAdmitted(states []nodeState) error {
	var causes []*NodeError
	for i, st := range states {
		switch {
		case st.err != nil:
			causes = append(causes, &NodeError{Node: l.nodes[i].name, Err: st.err})
		case !st.admitted:
			causes = append(causes, &NodeError{Node: l.nodes[i].name, Err: ErrQuarantined})
			l.nodeLost(l.nodes[i])
		}
	}
	return l.quorumError("init", l.keys.prefix, causes)
}

// nodeState is a node's own description of its state.
type nodeState struct {
	err         error
	admitted    bool   // marker and scripts of the same incarnation are there
	incarnation string // may be set although the node is not admitted: it was restarted
	durable     bool   // it was declared durable, and its settings were, when it was admitted
	pending     string // the admission that has begun
	void        bool   // the node was restarted since it began
	hasBase     bool
	base        int64
	promised    int64 // the highest epoch that it was promised, if the nodes keep the epoch
	limits      limits
	change      string // the last change of the limits
	stored      bool   // a store outside of the nodes keeps the epoch
	counters    int64
	reign       string        // as the admission noted it
	said        account       // what the server says of itself
	over        error         // why the reign of its incarnation, whose scripts it has, is over; nil: it is not
	locks       bool          // read only if there is no incarnation
	emptied     bool          // likewise: it may have granted leases in this run
	quarantine  time.Duration // 0: none
	rtt         time.Duration
	clock       time.Duration // ahead of this machine's
	hasClock    bool
}

// fresh reports whether the group has never been used. If a node is admitted, the first start has begun on all of
// them, so an empty node beside it has lost its data since.
//
// If the nodes keep the epoch, a first start leaves them without one. A node with an epoch was readmitted, or another
// was to be, so counters that existed nowhere else may have been lost, and a base of 0 would make tokens fall.
func (l *Locker) fresh(states []nodeState) bool {
	begun := admitted(states) > 0
	for _, st := range states {
		switch {
		case l.keepsEpoch() && (st.base > 0 || st.promised > 0):
			return false
		case begun && !st.admitted && (st.pending == "" || st.void):
			return false
		case st.err != nil, st.counters > 0, st.locks, st.emptied, st.quarantine > 0:
			return false
		case st.base%(1<<epochShift) > 0: // a sweep deleted the counters and kept only their maximum
			return false
		case st.incarnation == "" && st.hasBase, st.incarnation != "" && !st.admitted:
			return false
		}
	}
	return true
}

// initGrace is how long a group that was never used is left to [Locker.Init] after its last call.
const initGrace = 10 * time.Second

// leftByInit waits while the group was never used and Init is being called, also repeatedly. A quarantine that began
// meanwhile would keep Init from admitting the nodes. It is false if the Locker is closed.
func (l *Locker) leftByInit() bool {
	for l.neverUsed(l.ctx) {
		before := l.inits.Load()
		if pause(l.ctx, initGrace) != nil {
			return false
		}
		if l.initing.Load() == 0 && l.inits.Load() == before {
			return true
		}
	}
	return l.ctx.Err() == nil
}

// neverUsed reports that neither the fence nor any node that answers knows of a lease.
func (l *Locker) neverUsed(ctx context.Context) bool {
	if l.cfg.Armer == nil || l.cfg.Embedded {
		return false
	}
	if raised, err := l.raised(ctx); raised || err != nil {
		return false
	}
	for _, st := range l.states(ctx) {
		if st.err == nil && (st.incarnation != "" || st.hasBase || st.counters > 0 || st.locks || st.emptied || st.quarantine > 0) {
			return false
		}
	}
	return true
}

func unreachable(states []nodeState) bool {
	for _, st := range states {
		if st.err != nil {
			return true
		}
	}
	return false
}

func anyBase(states []nodeState) bool {
	for _, st := range states {
		if st.hasBase {
			return true
		}
	}
	return false
}

// states asks all nodes at once. A node that is marked for the other mode is an error.
func (l *Locker) states(ctx context.Context) []nodeState {
	states := make([]nodeState, len(l.nodes))
	l.each(func(i int, n *node) { states[i] = n.state(ctx) })
	l.noteLimits(states)
	return states
}

// markerFields is how many fields of H describe the node's state; the others are counters.
const markerFields = 11

// read reads the node's marker and looks for its scripts.
func (n *node) read(ctx context.Context) nodeState {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	var st nodeState
	begun := time.Now()
	var marker *redis.SliceCmd
	var fields *redis.IntCmd
	var quarantine *redis.DurationCmd
	var info *redis.StringCmd
	var clock *redis.TimeCmd
	_, failed := n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		marker = p.HMGet(ctx, n.keys.h, "@incarnation", "@base", "@maxttl", "@pending", "@note", "@reign", "@epoch", "@longest", "@durable", "@stored", "@change")
		fields = p.HLen(ctx, n.keys.h)
		quarantine = p.PTTL(ctx, n.keys.q)
		clock, info = p.Time(ctx), p.Info(ctx, accountSections...)
		return nil
	})
	err := cmp.Or(marker.Err(), fields.Err(), quarantine.Err()) // the time may be refused, and so may INFO
	if err == nil && n.cfg.watched() {
		err = info.Err()
	}
	if err == nil && clock.Err() == nil && info.Err() == nil {
		err = failed
	}
	if err == nil && len(marker.Val()) != markerFields {
		err = errMalformed
	}
	if err != nil {
		return nodeState{err: serverError(err)}
	}
	st.rtt = time.Since(begun)
	if st.hasClock = clock.Err() == nil; st.hasClock {
		st.clock = clock.Val().Sub(begun.Add(st.rtt / 2))
	}
	st.mark(marker.Val(), fields.Val())
	st.quarantine = max(0, quarantine.Val())
	if err = n.readRun(ctx, &st); err != nil {
		return nodeState{err: serverError(err)}
	}
	st.said = readAccount(info.Val())
	st.err = st.said.unfit()
	if st.admitted {
		st.over = st.said.over(st.reign)
		st.admitted = st.err == nil && st.over == nil
	}
	return st
}

// readRun looks for what a restart removes: the scripts of the node's incarnation, or of the admission that has
// begun.
func (n *node) readRun(ctx context.Context, st *nodeState) (err error) {
	if st.incarnation == "" {
		if st.locks, err = n.hasLocks(ctx); err == nil {
			st.emptied, err = n.hasTrace(ctx)
		}
	} else {
		st.admitted, err = n.hasScripts(ctx, st.incarnation)
	}
	if err == nil && !st.admitted && st.pending != "" {
		var alive bool
		alive, err = n.hasScripts(ctx, st.pending)
		st.void = !alive
	}
	return err
}

// mark sets the state from the node's hash: its marker, and the number of all its fields.
func (st *nodeState) mark(marker []any, fields int64) {
	st.counters = fields
	for _, v := range marker {
		if v != nil {
			st.counters--
		}
	}
	st.incarnation, _ = marker[0].(string)
	st.pending, _ = marker[3].(string)
	st.reign, _ = marker[5].(string)
	if text, ok := marker[1].(string); ok {
		st.hasBase = true
		st.base = number(text)
	}
	st.limits = limits{milliseconds(marker[2]), milliseconds(marker[7])}
	if text, ok := marker[6].(string); ok {
		st.promised = number(text)
	}
	st.durable, st.stored = marker[8] != nil, marker[9] != nil
	st.change, _ = marker[10].(string)
}

// milliseconds is a field that holds a time; 0: it is missing.
func milliseconds(field any) time.Duration {
	text, _ := field.(string)
	return time.Duration(number(text)) * time.Millisecond
}

func (n *node) hasScripts(ctx context.Context, nonce string) (bool, error) {
	b := bindScripts(nonce)
	found, err := n.client.ScriptExists(ctx, b.sha[:]...).Result()
	if err != nil {
		return false, err
	}
	for _, ok := range found {
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

func (n *node) hasTrace(ctx context.Context) (bool, error) {
	found, err := n.client.ScriptExists(ctx, shaOf(n.keys.trace(n.cfg.DB))).Result()
	return err == nil && len(found) == 1 && found[0], err
}

func (n *node) hasLocks(ctx context.Context) (bool, error) {
	scan := n.client.Scan(ctx, 0, globQuote(n.keys.lockPrefix)+"*", 1000).Iterator()
	found := scan.Next(ctx)
	return found, scan.Err()
}
