package node

import (
	"errors"
	"sync/atomic"
	"time"
)

// Kind is the kind of an op.
type Kind uint8

const (
	OpAcquire Kind = iota // phase 1
	OpConfirm             // phase 2
	OpExtend
	OpRelease
	opKinds // number of kinds whose script is bound to an incarnation
)

// The kinds of ops of waiters. No lock depends on them.
const (
	OpLook  Kind = scriptKinds + iota // joins the queue of a resource, or checks the place in it
	OpLeave                           // leaves the queue
	OpHas                             // whether the node has a lock of the resource
)

// Op is one call on one node.
type Op struct {
	Kind     Kind
	Node     int
	Resource string
	Wakes    bool // release: this node may have a queue of waiters
	Ask
	State    atomic.Uint32
	Repeated bool // release: its link ended or it was refused, and it is sent again
	Sink     sink
}

// Ask has an op's arguments, the same for each node.
type Ask struct {
	Owner   string // look, leave: the waiter
	Holder  string
	TTL     int64     // ms; look: after how long without one the first of the queue is skipped
	N       int64     // acquire: floor; confirm: token
	Expires time.Time // not sent after that
}

// sink receives the reply to an op: exactly one for each submitted op. It must not block.
type sink interface{ Deliver(r Reply) }

// States of an op. The goroutine that changes it from queued decides.
const (
	OpQueued uint32 = iota
	opSent
	opAbandoned
)

// Abandon takes an op back. It reports false if the op was already sent: then it may take effect at any time.
func (o *Op) Abandon() bool { return o.State.CompareAndSwap(OpQueued, opAbandoned) }

// Codes of a script's reply, other than a positive number.
const (
	CodeRefused   = 0  // acquire: held; confirm, extend: lost; release: not ours; has: no lock; look: always
	codeUnknown   = -1 // the node is not admitted in this incarnation
	CodeExhausted = -2
	CodeMaxTTL    = -3
)

// Reply is a node's answer to an op.
type Reply struct {
	Node   int
	N      int64 // the code, or the counter of a grant
	PTTL   int64 // refused acquire, look: ms; else the node's maximum for codeMaxTTL
	Floor  int64 // refused acquire: counter; look: how many wait before this one
	Holder string
	Err    error // no answer: whether the op took effect is unknown, unless sent is false
	Sent   bool
}

// maxSegment bounds one batch script: Lua's unpack has a limit, and a running script blocks the node's other clients.
const maxSegment = 256

// plan puts the queued ops of a node into script calls: many acquires and releases into one call, and many extensions
// into one, as long as each is for a different resource. Every other op has its own call, and so has a release that is
// sent again.
//
// Ops on one resource keep their order: a resource's second op is sent after the call with its first one, its third
// after that. Ops on different resources have no order. (When one call had acquires and releases of the same
// resource, acquires first, a late acquire and its own release met in one batch and left ghost locks. When the batch
// was cut wherever a resource came again, batches had one or two ops if callers release without waiting.)
type plan struct {
	depth  map[string]int // how often a resource came so far
	layers []layer        // of the first op of each resource, of the second, …
	sizes  []int          // number of ops in each call, in the order of the calls
}

// layer holds ops of different resources, grouped for the batch script: acquires, releases, releases that wake;
// extensions; and others.
type layer [5][]*Op

const (
	extendsPart = 3 + iota
	othersPart
)

func (o *Op) part() int {
	switch {
	case o.Kind == OpAcquire:
		return 0
	case o.Repeated:
		return othersPart // whatever another op's script fails for
	case o.Kind == OpRelease && !o.Wakes:
		return 1
	case o.Kind == OpRelease:
		return 2
	case o.Kind == OpExtend:
		return extendsPart
	}
	return othersPart
}

// arrange puts ops into the order in which they are sent, and sizes the calls.
func (p *plan) arrange(ops []*Op) {
	p.sizes = p.sizes[:0]
	if len(ops) == 1 {
		p.sizes = append(p.sizes, 1)
		return
	}
	if p.depth == nil {
		p.depth = make(map[string]int)
	}
	clear(p.depth)
	used := 0
	for _, o := range ops {
		depth := p.depth[o.Resource]
		p.depth[o.Resource] = depth + 1
		if depth == len(p.layers) {
			p.layers = append(p.layers, layer{})
		}
		used = max(used, depth+1)
		part := &p.layers[depth][o.part()]
		*part = append(*part, o)
	}
	at := 0
	for i := range used {
		begin := at
		for j, part := range p.layers[i] {
			switch j {
			case extendsPart:
				p.cut(at - begin)
				p.cut(len(part))
			case othersPart:
				for range part {
					p.sizes = append(p.sizes, 1)
				}
			}
			at += copy(ops[at:], part)
			p.layers[i][j] = part[:0]
		}
	}
}

// cut sizes the calls for n ops.
func (p *plan) cut(n int) {
	for ; n > 0; n -= min(n, maxSegment) {
		p.sizes = append(p.sizes, min(n, maxSegment))
	}
}

// request arranges ops, and appends their script calls.
func (b *Bound) request(out []byte, k *Keys, p *plan, ops []*Op) []byte {
	p.arrange(ops)
	for _, size := range p.sizes {
		switch {
		case ops[0].Kind >= OpLook:
			out = ops[0].ofWaiter(out, k)
		case ops[0].Kind == OpExtend:
			out = b.extends(out, k, ops[:size])
		case size == 1:
			out = b.single(out, k, ops[0])
		default:
			out = b.batch(out, k, ops[:size])
		}
		ops = ops[size:]
	}
	return out
}

func (b *Bound) single(out []byte, k *Keys, o *Op) []byte {
	args := [opKinds]int{OpAcquire: 4, OpConfirm: 3, OpRelease: 1}[o.Kind]
	named := 2
	if o.Wakes {
		named, args = 4, args+2
	}
	out = appendHead(out, 3+named+args)
	out = append(out, b.call[o.Kind]...)
	out = appendNumber(out, int64(named))
	out = append(out, k.hBulk...)
	out = appendBulk(out, k.lockPrefix, o.Resource)
	switch o.Kind {
	case OpAcquire:
		out = appendBulk(out, counterPrefix, o.Resource)
		out = appendBulk(out, o.Owner, o.Holder)
		out = appendNumber(out, o.TTL)
		out = appendNumber(out, o.N)
	case OpConfirm:
		out = appendBulk(out, counterPrefix, o.Resource)
		out = appendBulk(out, o.Owner)
		out = appendNumber(out, o.N)
	default:
		if o.Wakes {
			out = appendBulk(out, k.waitPrefix, o.Resource)
			out = appendBulk(out, k.waiting)
		}
		out = appendBulk(out, o.Owner)
		if o.Wakes {
			out = appendBulk(out, o.Resource)
			out = appendBulk(out, k.WakePrefix)
		}
	}
	return out
}

// ofWaiter appends a waiter's op.
func (o *Op) ofWaiter(out []byte, k *Keys) []byte {
	switch o.Kind {
	case OpHas:
		return appendBulk(appendBulk(appendHead(out, 2), "EXISTS"), k.lockPrefix, o.Resource)
	case OpLook:
		out = append(appendHead(out, 3+4+4), lookCall...)
	default:
		out = append(appendHead(out, 3+4+3), leaveCall...)
	}
	out = appendNumber(out, 4)
	out = appendBulk(out, k.waitPrefix, o.Resource)
	out = appendBulk(out, k.lockPrefix, o.Resource)
	out = appendBulk(out, k.waiting)
	out = appendBulk(out, k.seenPrefix, o.Resource)
	out = appendBulk(out, o.Owner)
	out = appendBulk(out, o.Resource)
	out = appendBulk(out, k.WakePrefix)
	if o.Kind == OpLook {
		out = appendNumber(out, o.TTL)
	}
	return out
}

// extends appends one call for extensions.
func (b *Bound) extends(out []byte, k *Keys, seg []*Op) []byte {
	out = appendHead(out, 4+3*len(seg))
	out = append(out, b.call[OpExtend]...)
	out = appendNumber(out, int64(1+len(seg)))
	out = append(out, k.hBulk...)
	for _, o := range seg {
		out = appendBulk(out, k.lockPrefix, o.Resource)
	}
	for _, o := range seg {
		out = appendBulk(out, o.Owner)
		out = appendNumber(out, o.TTL)
	}
	return out
}

// batch appends one call for acquires, then releases, then releases that wake.
func (b *Bound) batch(out []byte, k *Keys, seg []*Op) []byte {
	acquires, wakes, floors := 0, 0, 0
	ttl := seg[0].TTL
	for _, o := range seg {
		switch {
		case o.Wakes:
			wakes++
		case o.Kind == OpAcquire:
			acquires++
			if o.TTL != ttl {
				ttl = 0 // each has its own
			}
			if o.N > 0 {
				floors = 1
			}
		}
	}
	args := 7 + len(seg) + floors*acquires
	if ttl == 0 {
		args += acquires
	}
	out = appendHead(out, 5+len(seg)+args)
	out = append(out, b.call[batchKind]...)
	out = appendNumber(out, int64(2+len(seg)))
	out = append(out, k.hBulk...)
	out = appendBulk(out, k.waiting)
	for _, o := range seg {
		out = appendBulk(out, k.lockPrefix, o.Resource)
	}
	for _, n := range [...]int64{int64(acquires), int64(wakes), ttl, int64(floors), int64(len(k.lockPrefix))} {
		out = appendNumber(out, n)
	}
	out = appendBulk(out, k.waitPrefix)
	out = appendBulk(out, k.WakePrefix)
	for _, o := range seg[:acquires] {
		out = appendBulk(out, o.Owner, o.Holder)
	}
	for _, o := range seg[acquires:] {
		out = appendBulk(out, o.Owner)
	}
	for _, o := range seg[:acquires] {
		if ttl == 0 {
			out = appendNumber(out, o.TTL)
		}
	}
	for _, o := range seg[:acquires] {
		if floors == 1 {
			out = appendNumber(out, o.N)
		}
	}
	return out
}

// parse reads the replies to the ops of one call.
func parse(into []Reply, ops []*Op, vals []value, err error) []Reply {
	if len(ops) == 1 && ops[0].Kind != OpExtend {
		return append(into, parseReply(vals, err))
	}
	return parseBatch(into, len(ops), vals, err)
}

// parseReply reads the flat array, or the number, that answers a call of a single op.
func parseReply(vals []value, err error) Reply {
	switch {
	case err != nil:
		return failed(err)
	case len(vals) == 0, !vals[0].number:
		return Reply{Err: errMalformed, Sent: true}
	case vals[0].n == codeUnknown:
		return Reply{Err: ErrQuarantined}
	}
	r := Reply{Sent: true, N: vals[0].n}
	for i, v := range vals[1:] {
		switch i {
		case 0:
			r.PTTL = v.n
		case 1:
			r.Floor = v.n
		case 2:
			r.Holder = v.Text
		}
	}
	return r
}

// parseBatch reads the flat array of a script that does several ops: a reply for each.
func parseBatch(into []Reply, ops int, vals []value, err error) []Reply {
	if err == nil && (len(vals) < ops || (len(vals)-ops)%4 != 0 || !allNumbers(vals[:ops])) {
		err = errMalformed
	}
	if err != nil {
		// Any of the acquires may have been granted.
		for range ops {
			into = append(into, failed(err))
		}
		return into
	}
	begin := len(into)
	for _, v := range vals[:ops] {
		r := Reply{Sent: true, N: v.n}
		if v.n == codeUnknown {
			r = Reply{Err: ErrQuarantined}
		}
		into = append(into, r)
	}
	for tail := vals[ops:]; len(tail) > 0; tail = tail[4:] {
		if at := tail[0].n; at >= 1 && at <= int64(ops) {
			r := &into[begin+int(at)-1]
			r.PTTL, r.Floor, r.Holder = tail[1].n, tail[2].n, tail[3].Text
		}
	}
	return into
}

func allNumbers(vals []value) bool {
	for i := range vals {
		if !vals[i].number {
			return false
		}
	}
	return true
}

func failed(err error) Reply {
	err = ServerError(err)
	return Reply{Err: err, Sent: !errors.Is(err, ErrQuarantined)}
}

// integer reads a number from a reply of the Redis client.
func integer(values []any, i int) int64 {
	if i >= len(values) {
		return 0
	}
	n, _ := values[i].(int64)
	return n
}
