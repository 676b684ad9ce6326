package lock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// round is one step of an operation on several nodes. It counts the answers until they are decisive, and wakes its
// caller once.
type round struct {
	l         *Locker
	kind      node.Kind
	operation string
	resource  string
	tally

	trace context.Context // of the steps on the nodes; see traced
	ends  []func(error)

	quiet [maxNodes]quiet // by node, for those that are awaited

	mu   sync.Mutex
	over bool      // later answers change nothing
	refs int       // the caller, and each op that was not answered
	ops  []node.Op // one for each node
	done chan struct{}
	tick *time.Timer
}

// tally is the result of the answers together.
type tally struct {
	pending uint32 // nodes that have not answered, one bit each
	may     uint32 // nodes on which a lock may be ours
	granted uint32 // acquire: nodes that granted
	yes     int    // granted, confirmed, extended, deleted
	no      int    // refused, lost, nothing to delete
	failed  int    // no answer, or neither yes nor no
	maxTTL  int64  // of a node that refused the TTL as too long, ms; 0: none
	spent   bool   // a node has no tokens left in this epoch

	counters [maxNodes]int64
	top      int64
	refusal  struct {
		floor, pttl int64
		holder      string
		known       bool
	}
	causes []*NodeError
}

// maxAsking bounds the acquisitions and looks that wait for answers at one time. More are not faster, because a
// connection has one batch in flight. Without a bound, the checks of ten thousand rounds leave so little time to the
// goroutines that read the answers that every node looks silent.
const maxAsking = 256

// ask waits until the caller may make such a round. It ends with answered.
func (l *Locker) ask(ctx context.Context) error {
	select {
	case l.asking <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.asking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Locker) answered() { <-l.asking }

// newRound creates a round. Its caller ends it with drop.
func (l *Locker) newRound(kind node.Kind, operation, resource string) *round {
	r, _ := l.rounds.Get().(*round)
	if r == nil {
		r = &round{l: l, ops: make([]node.Op, len(l.nodes)), done: make(chan struct{}, 1), tick: time.NewTimer(time.Hour)}
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

// drop releases one reference. After the last one the round is reused.
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
func (r *round) send(set uint32, what node.Ask) {
	hash := hashed(r.resource)
	r.mu.Lock()
	r.pending = set
	for i, n := range r.l.nodes {
		if set&(1<<i) != 0 {
			r.refs++
			r.quiet[i] = newQuiet(&n.Lane(hash).Signs)
		}
	}
	r.mu.Unlock()
	home := int(hash % uint32(len(r.l.nodes)))
	for k := range r.l.nodes {
		// The home last: the waiter that it wakes should find the other nodes free.
		i := (home + 1 + k) % len(r.l.nodes)
		n := r.l.nodes[i]
		if set&(1<<i) == 0 {
			continue
		}
		one := &r.ops[i]
		one.Kind, one.Node, one.Resource, one.Ask, one.Sink = r.kind, i, r.resource, what, r
		one.Wakes = r.kind == node.OpRelease && r.l.wakes(home, i)
		one.Repeated = false
		one.State.Store(node.OpQueued)
		if r.ends != nil {
			r.beginNode(i)
		}
		n.Lane(hash).Submit(one)
	}
}

// deliver counts an answer.
func (r *round) Deliver(rep node.Reply) {
	if r.ends != nil {
		r.endNode(rep)
	}
	r.mu.Lock()
	if !r.over {
		r.pending &^= 1 << rep.Node
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

func (r *round) count(rep node.Reply) {
	bit := uint32(1) << rep.Node
	switch {
	case rep.Err != nil:
		r.failed++
		if rep.Sent {
			r.may |= bit
		}
		r.cause(rep.Node, rep.Err)
	case rep.N > 0:
		r.yes++
		r.may |= bit
		r.granted |= bit
		r.counters[rep.Node] = rep.N
		r.top = max(r.top, rep.N)
	case rep.N == node.CodeMaxTTL:
		r.failed++
		r.maxTTL = rep.PTTL
	case rep.N == node.CodeExhausted:
		r.failed++
		r.spent = true
		r.cause(rep.Node, ErrExhausted)
	default:
		r.no++
		h := &r.refusal
		// A node that has not received a release yet names the previous holder: the newest lease has the highest
		// counter.
		if !h.known || rep.Floor > h.floor || rep.Floor == h.floor && rep.PTTL >= h.pttl {
			h.pttl, h.holder, h.known = rep.PTTL, rep.Holder, true
		}
		h.floor = max(h.floor, rep.Floor)
	}
}

// decided reports whether the missing answers can change nothing any more.
func (r *round) decided() bool {
	minority := len(r.l.nodes) - r.l.quorum
	switch r.kind {
	case node.OpAcquire:
		// "Not granted" is not enough: with a node down it takes one more answer to tell "held", which is worth
		// waiting for, from "no quorum".
		return r.yes >= r.l.quorum || r.failed > minority ||
			r.no+r.failed > minority && r.no+r.yes >= r.l.quorum
	case node.OpConfirm:
		return r.yes >= r.l.quorum
	case node.OpHas: // of all nodes but the home
		return r.no >= r.l.quorum || r.yes+r.failed >= minority
	default:
		return r.yes >= r.l.quorum || r.no > minority
	}
}

// wait blocks until the round is decided, all nodes have answered, or the missing ones, in r.pending, were silent for
// the node timeout. It returns an error only if ctx ended first.
func (r *round) wait(ctx context.Context) error { return r.look(ctx, r.l.cfg.NodeTimeout, nil) }

// within is wait with a time after which answers no longer count.
func (r *round) within(ctx context.Context, until clock.Instant) error {
	return r.look(ctx, r.l.cfg.NodeTimeout, &until)
}

// late records that the answers came after the end of the round.
func (r *round) late() {
	for i := range r.l.nodes {
		if r.granted&(1<<i) != 0 {
			r.cause(i, ErrNodeTimeout)
		}
	}
}

// waitUntil is wait for nodes that may be silent for longer, up to a given time.
func (r *round) waitUntil(ctx context.Context, until clock.Instant) error {
	return r.look(ctx, r.l.roundLimit(), &until)
}

func (r *round) look(ctx context.Context, silence time.Duration, until *clock.Instant) error {
	defer r.tick.Stop()
	for {
		after := silence / looks
		if until != nil {
			after = max(0, min(after, until.Left()))
		}
		r.tick.Reset(after)
		select {
		case <-r.done:
			return nil
		case <-r.tick.C:
			if !r.silent() && (until == nil || !until.Passed()) {
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

// missing records the nodes that have not answered.
func (r *round) missing() {
	for i, n := range r.l.nodes {
		if r.pending&(1<<i) != 0 {
			r.l.cfg.Metrics.Slow(n.Name)
			r.cause(i, ErrNodeTimeout)
		}
	}
}

// looks is how many times a node is checked before it counts as silent.
const looks = 4

// quiet counts the checks for which a node has been silent. It counts checks instead of time, because time also
// passes while this process, and the goroutine that reads the node's answers, does not run. A sign of life is any
// answer on the connection, because an op that is queued behind others waits for those first.
type quiet struct {
	signs *atomic.Uint32 // of the connection
	last  uint32         // their number at the last check
	looks int
}

func newQuiet(signs *atomic.Uint32) quiet { return quiet{signs: signs, last: signs.Load()} }

// silent checks once more, and reports whether enough checks in a row found no sign of life.
func (q *quiet) silent() bool {
	if now := q.signs.Load(); now != q.last {
		q.last, q.looks = now, 0
	} else {
		q.looks++
	}
	return q.looks >= looks
}

// silent checks the awaited nodes once more, and reports whether all of them have been silent for enough checks.
func (r *round) silent() bool {
	r.mu.Lock()
	pending := r.pending
	r.mu.Unlock()
	silent := true
	for i := range r.l.nodes {
		if pending&(1<<i) == 0 {
			continue
		}
		silent = r.quiet[i].silent() && silent
	}
	return silent
}

// end makes later answers change nothing, and reports whether the round was still open.
func (r *round) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	open := !r.over
	r.over = true
	return open
}

func (r *round) cause(i int, err error) {
	r.causes = append(r.causes, &NodeError{Node: r.l.nodes[i].Name, Err: err})
}

// noQuorum builds the error of a failed round.
func (r *round) noQuorum() error {
	return r.l.group.QuorumError(r.operation, r.resource, r.causes)
}

// heldError builds the error of a refused round: the holder and expiry of the newest lease, and the highest counter.
func (r *round) heldError() *refusedError {
	e := &refusedError{HeldError: leasing.HeldError{Resource: r.resource}, floor: fence.Token(r.refusal.floor)}
	// If several attempts may have collided, there is no holder, and the first expiry means nothing.
	if r.yes <= len(r.l.nodes)-r.l.quorum {
		e.Holder = r.refusal.holder
		e.RetryAfter = max(0, time.Duration(r.refusal.pttl)*time.Millisecond)
	}
	return e
}

// giveBack sends a compare-and-delete to the nodes in the set, after what is already queued for them, and does not
// wait.
func (l *Locker) giveBack(resource, owner string, ttl time.Duration, set uint32) {
	if set == 0 {
		return
	}
	r := l.newRound(node.OpRelease, "release", resource)
	defer r.drop()
	r.over = true
	r.send(set, node.Ask{Owner: owner, Expires: time.Now().Add(ttl + l.roundLimit())}) // after that the locks have expired
}
