package lock

import (
	"context"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// round is one step of an operation on several nodes: it counts the answers
// until they decide, and wakes its caller once.
type round struct {
	l         *Locker
	kind      opKind
	operation string
	resource  string
	tally

	trace context.Context // of the steps on the nodes; see traced
	ends  []func(error)

	quiet [maxNodes]quiet // by node, of those that are waited for

	mu   sync.Mutex
	over bool // later answers change nothing
	refs int  // the caller, and each op that was not answered
	ops  []op // one for each node
	done chan struct{}
	tick *time.Timer
}

// tally is what the answers say together.
type tally struct {
	pending uint32 // nodes that have not answered, one bit each
	may     uint32 // nodes on which a lock may be ours
	granted uint32 // acquire: nodes that granted
	yes     int    // granted, confirmed, extended, deleted
	no      int    // refused, lost, nothing to delete
	failed  int    // no answer, or none that says yes or no
	maxTTL  int64  // of a node that found the TTL too long, ms; 0: none did
	spent   bool   // a node has no tokens left in this epoch

	counters [maxNodes]int64
	top      int64
	held     struct {
		floor, pttl int64
		holder      string
		known       bool
	}
	causes []*NodeError
}

// newRound makes a round. Its caller ends it with drop.
func (l *Locker) newRound(kind opKind, operation, resource string) *round {
	r, _ := l.rounds.Get().(*round)
	if r == nil {
		r = &round{l: l, ops: make([]op, len(l.nodes)), done: make(chan struct{}, 1), tick: time.NewTimer(time.Hour)}
		r.tick.Stop()
	}
	select {
	case <-r.done:
	default:
	}
	r.kind, r.operation, r.resource = kind, operation, resource
	r.tally, r.over, r.refs = tally{}, false, 1
	r.trace, r.ends = nil, nil
	return r
}

// drop gives one reference up: with the last one the round is used again.
func (r *round) drop() {
	r.mu.Lock()
	r.refs--
	last := r.refs == 0
	r.mu.Unlock()
	if last {
		r.l.rounds.Put(r)
	}
}

// send submits an op to each node in the set.
func (r *round) send(set uint32, what ask) {
	hash := hashed(r.resource)
	r.mu.Lock()
	r.pending = set
	for i, n := range r.l.nodes {
		if set&(1<<i) != 0 {
			r.refs++
			r.quiet[i] = quiet{lane: n.lane(hash), signs: n.lane(hash).signs.Load()}
		}
	}
	r.mu.Unlock()
	home := int(hash % uint32(len(r.l.nodes)))
	for k := range r.l.nodes {
		// The home last: whom it wakes should find the other nodes free.
		i := (home + 1 + k) % len(r.l.nodes)
		n := r.l.nodes[i]
		if set&(1<<i) == 0 {
			continue
		}
		one := &r.ops[i]
		one.kind, one.node, one.resource, one.ask, one.sink = r.kind, i, r.resource, what, r
		one.wakes = r.kind == opRelease && r.l.wakes(home, i)
		one.repeated = false
		one.state.Store(opQueued)
		if r.ends != nil {
			r.beginNode(i)
		}
		n.lane(hash).submit(one)
	}
}

// deliver counts an answer.
func (r *round) deliver(rep reply) {
	if r.ends != nil {
		r.endNode(rep)
	}
	r.mu.Lock()
	if !r.over {
		r.pending &^= 1 << rep.node
		if r.count(rep); r.decided() || r.pending == 0 {
			r.over = true
			r.done <- struct{}{}
		}
	}
	r.refs--
	last := r.refs == 0
	r.mu.Unlock()
	if last {
		r.l.rounds.Put(r)
	}
}

func (r *round) count(rep reply) {
	bit := uint32(1) << rep.node
	switch {
	case rep.err != nil:
		r.failed++
		if rep.sent {
			r.may |= bit
		}
		r.cause(rep.node, rep.err)
	case rep.n > 0:
		r.yes++
		r.may |= bit
		r.granted |= bit
		r.counters[rep.node] = rep.n
		r.top = max(r.top, rep.n)
	case rep.n == codeMaxTTL:
		r.failed++
		r.maxTTL = rep.pttl
	case rep.n == codeExhausted:
		r.failed++
		r.spent = true
		r.cause(rep.node, ErrExhausted)
	default:
		r.no++
		h := &r.held
		// A node that has not heard of a release yet names who held it before: the newest lease has counted highest.
		if !h.known || rep.floor > h.floor || rep.floor == h.floor && rep.pttl >= h.pttl {
			h.pttl, h.holder, h.known = rep.pttl, rep.holder, true
		}
		h.floor = max(h.floor, rep.floor)
	}
}

// decided reports whether the answers that are still missing can change nothing.
func (r *round) decided() bool {
	minority := len(r.l.nodes) - r.l.quorum
	switch r.kind {
	case opAcquire:
		// Not granted is not enough to know: with a node down it takes one more
		// answer to tell "held", which is worth waiting for, from "no quorum".
		return r.yes >= r.l.quorum || r.failed > minority ||
			r.no+r.failed > minority && r.no+r.yes >= r.l.quorum
	case opConfirm:
		return r.yes >= r.l.quorum
	default:
		return r.yes >= r.l.quorum || r.no > minority
	}
}

// wait blocks until the round is decided, all have answered, or nothing was heard
// for the node timeout of those that have not; they are in r.pending then. It returns
// an error only when ctx ended first.
func (r *round) wait(ctx context.Context) error { return r.look(ctx, r.l.cfg.NodeTimeout, nil) }

// within is wait for answers that count until a moment only.
func (r *round) within(ctx context.Context, until instant) error {
	return r.look(ctx, r.l.cfg.NodeTimeout, &until)
}

// late notes that the answers came when the round was over.
func (r *round) late() {
	for i := range r.l.nodes {
		if r.granted&(1<<i) != 0 {
			r.cause(i, ErrNodeTimeout)
		}
	}
}

// waitUntil is wait for nodes that may be silent for longer, until a moment at most.
func (r *round) waitUntil(ctx context.Context, until instant) error {
	return r.look(ctx, r.l.roundLimit(), &until)
}

func (r *round) look(ctx context.Context, silence time.Duration, until *instant) error {
	defer r.tick.Stop()
	for {
		after := silence / looks
		if until != nil {
			after = max(0, min(after, until.left()))
		}
		r.tick.Reset(after)
		select {
		case <-r.done:
			return nil
		case <-r.tick.C:
			if !r.silent() && (until == nil || !until.passed()) {
				continue
			}
			if r.end() {
				r.missing()
			}
			return nil
		case <-ctx.Done():
			r.end()
			return context.Cause(ctx)
		}
	}
}

// missing notes the nodes that have not answered.
func (r *round) missing() {
	for i, n := range r.l.nodes {
		if r.pending&(1<<i) != 0 {
			r.l.cfg.Metrics.Slow(n.name)
			r.cause(i, ErrNodeTimeout)
		}
	}
}

// looks is how often a node is looked at before it is called silent.
const looks = 4

// quiet is for how many looks a node has been silent. Looks and not time are counted,
// because time passes, too, where this process, and the goroutine that reads the node's
// answers, does not run. And what counts is the connection's last sign of life: an op
// that is queued behind others waits for those first.
type quiet struct {
	lane  *node
	signs uint32 // at the last look
	looks int
}

// silent looks once more at the nodes that are waited for, and reports whether all of
// them have been silent for as many looks as it takes.
func (r *round) silent() bool {
	r.mu.Lock()
	pending := r.pending
	r.mu.Unlock()
	silent := true
	for i := range r.l.nodes {
		if pending&(1<<i) == 0 {
			continue
		}
		q := &r.quiet[i]
		if signs := q.lane.signs.Load(); signs != q.signs {
			q.signs, q.looks = signs, 0
		} else {
			q.looks++
		}
		silent = silent && q.looks >= looks
	}
	return silent
}

// end lets later answers change nothing, and reports whether it was still open.
func (r *round) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	open := !r.over
	r.over = true
	return open
}

func (r *round) cause(node int, err error) {
	r.causes = append(r.causes, &NodeError{Node: r.l.nodes[node].name, Err: err})
}

// noQuorum says why the round failed.
func (r *round) noQuorum() error {
	return r.l.quorumError(r.operation, r.resource, r.causes)
}

// heldError is the refusal of a round that was refused: the holder and expiry of
// the newest lease, and the highest counter that were seen.
func (r *round) heldError() *refusedError {
	e := &refusedError{HeldError: leasing.HeldError{Resource: r.resource}, floor: fence.Token(r.held.floor)}
	// Where several attempts may have collided nobody has the lock, and the
	// first expiry says nothing.
	if r.yes <= len(r.l.nodes)-r.l.quorum {
		e.Holder = r.held.holder
		e.RetryAfter = max(0, time.Duration(r.held.pttl)*time.Millisecond)
	}
	return e
}

// giveBack sends a compare-and-delete to the nodes in the set, behind whatever
// is already on its way to them, and waits for nobody.
func (l *Locker) giveBack(resource, owner string, ttl time.Duration, set uint32) {
	if set == 0 {
		return
	}
	r := l.newRound(opRelease, "release", resource)
	defer r.drop()
	r.over = true
	r.send(set, ask{owner: owner, expires: time.Now().Add(ttl + l.roundLimit())}) // after that the locks are gone by themselves
}
