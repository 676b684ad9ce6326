package lock

import "errors"

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
	seen   map[string]int // how often a resource came so far
	layers []layer        // of the first op of each resource, of the second, …
	sizes  []int          // number of ops in each call, in the order of the calls
}

// layer holds ops of different resources, grouped for the batch script: acquires, releases, releases that wake;
// extensions; and others.
type layer [5][]*op

const (
	extendsPart = 3 + iota
	othersPart
)

func (o *op) part() int {
	switch {
	case o.kind == opAcquire:
		return 0
	case o.repeated:
		return othersPart // whatever another op's script fails for
	case o.kind == opRelease && !o.wakes:
		return 1
	case o.kind == opRelease:
		return 2
	case o.kind == opExtend:
		return extendsPart
	}
	return othersPart
}

// arrange puts ops into the order in which they are sent, and sizes the calls.
func (p *plan) arrange(ops []*op) {
	p.sizes = p.sizes[:0]
	if len(ops) == 1 {
		p.sizes = append(p.sizes, 1)
		return
	}
	if p.seen == nil {
		p.seen = make(map[string]int)
	}
	clear(p.seen)
	used := 0
	for _, o := range ops {
		depth := p.seen[o.resource]
		p.seen[o.resource] = depth + 1
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
func (b *bound) request(out []byte, k *keys, p *plan, ops []*op) []byte {
	p.arrange(ops)
	for _, size := range p.sizes {
		switch {
		case ops[0].kind >= opLook:
			out = ops[0].ofWaiter(out, k)
		case ops[0].kind == opExtend:
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

func (b *bound) single(out []byte, k *keys, o *op) []byte {
	args := [opKinds]int{opAcquire: 4, opConfirm: 3, opRelease: 1}[o.kind]
	named := 2
	if o.wakes {
		named, args = 4, args+2
	}
	out = appendHead(out, 3+named+args)
	out = append(out, b.call[o.kind]...)
	out = appendNumber(out, int64(named))
	out = append(out, k.hBulk...)
	out = appendBulk(out, k.lockPrefix, o.resource)
	switch o.kind {
	case opAcquire:
		out = appendBulk(out, counterPrefix, o.resource)
		out = appendBulk(out, o.owner, o.holder)
		out = appendNumber(out, o.ttl)
		out = appendNumber(out, o.n)
	case opConfirm:
		out = appendBulk(out, counterPrefix, o.resource)
		out = appendBulk(out, o.owner)
		out = appendNumber(out, o.n)
	default:
		if o.wakes {
			out = appendBulk(out, k.waitPrefix, o.resource)
			out = appendBulk(out, k.waiting)
		}
		out = appendBulk(out, o.owner)
		if o.wakes {
			out = appendBulk(out, o.resource)
			out = appendBulk(out, k.wakePrefix)
		}
	}
	return out
}

// ofWaiter appends a waiter's op.
func (o *op) ofWaiter(out []byte, k *keys) []byte {
	switch o.kind {
	case opHas:
		return appendBulk(appendBulk(appendHead(out, 2), "EXISTS"), k.lockPrefix, o.resource)
	case opLook:
		out = append(appendHead(out, 3+4+4), lookCall...)
	default:
		out = append(appendHead(out, 3+4+3), leaveCall...)
	}
	out = appendNumber(out, 4)
	out = appendBulk(out, k.waitPrefix, o.resource)
	out = appendBulk(out, k.lockPrefix, o.resource)
	out = appendBulk(out, k.waiting)
	out = appendBulk(out, k.seenPrefix, o.resource)
	out = appendBulk(out, o.owner)
	out = appendBulk(out, o.resource)
	out = appendBulk(out, k.wakePrefix)
	if o.kind == opLook {
		out = appendNumber(out, o.ttl)
	}
	return out
}

// extends appends one call for extensions.
func (b *bound) extends(out []byte, k *keys, seg []*op) []byte {
	out = appendHead(out, 4+3*len(seg))
	out = append(out, b.call[opExtend]...)
	out = appendNumber(out, int64(1+len(seg)))
	out = append(out, k.hBulk...)
	for _, o := range seg {
		out = appendBulk(out, k.lockPrefix, o.resource)
	}
	for _, o := range seg {
		out = appendBulk(out, o.owner)
		out = appendNumber(out, o.ttl)
	}
	return out
}

// batch appends one call for acquires, then releases, then releases that wake.
func (b *bound) batch(out []byte, k *keys, seg []*op) []byte {
	acquires, wakes, floors := 0, 0, 0
	ttl := seg[0].ttl
	for _, o := range seg {
		switch {
		case o.wakes:
			wakes++
		case o.kind == opAcquire:
			acquires++
			if o.ttl != ttl {
				ttl = 0 // each has its own
			}
			if o.n > 0 {
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
		out = appendBulk(out, k.lockPrefix, o.resource)
	}
	for _, n := range [...]int64{int64(acquires), int64(wakes), ttl, int64(floors), int64(len(k.lockPrefix))} {
		out = appendNumber(out, n)
	}
	out = appendBulk(out, k.waitPrefix)
	out = appendBulk(out, k.wakePrefix)
	for _, o := range seg[:acquires] {
		out = appendBulk(out, o.owner, o.holder)
	}
	for _, o := range seg[acquires:] {
		out = appendBulk(out, o.owner)
	}
	for _, o := range seg[:acquires] {
		if ttl == 0 {
			out = appendNumber(out, o.ttl)
		}
	}
	for _, o := range seg[:acquires] {
		if floors == 1 {
			out = appendNumber(out, o.n)
		}
	}
	return out
}

// parse reads the replies to the ops of one call.
func parse(into []reply, ops []*op, vals []value, err error) []reply {
	if len(ops) == 1 && ops[0].kind != opExtend {
		return append(into, parseReply(vals, err))
	}
	return parseBatch(into, len(ops), vals, err)
}

// parseReply reads the flat array, or the number, that answers a call of a single op.
func parseReply(vals []value, err error) reply {
	switch {
	case err != nil:
		return failed(err)
	case len(vals) == 0, !vals[0].number:
		return reply{err: errMalformed, sent: true}
	case vals[0].n == codeUnknown:
		return reply{err: ErrQuarantined}
	}
	r := reply{sent: true, n: vals[0].n}
	for i, v := range vals[1:] {
		switch i {
		case 0:
			r.pttl = v.n
		case 1:
			r.floor = v.n
		case 2:
			r.holder = v.text
		}
	}
	return r
}

// parseBatch reads the flat array of a script that does several ops: a reply for each.
func parseBatch(into []reply, ops int, vals []value, err error) []reply {
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
		r := reply{sent: true, n: v.n}
		if v.n == codeUnknown {
			r = reply{err: ErrQuarantined}
		}
		into = append(into, r)
	}
	for tail := vals[ops:]; len(tail) > 0; tail = tail[4:] {
		if at := tail[0].n; at >= 1 && at <= int64(ops) {
			r := &into[begin+int(at)-1]
			r.pttl, r.floor, r.holder = tail[1].n, tail[2].n, tail[3].text
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

func failed(err error) reply {
	err = serverError(err)
	return reply{err: err, sent: !errors.Is(err, ErrQuarantined)}
}

// integer reads a number from a reply of the Redis client.
func integer(values []any, i int) int64 {
	if i >= len(values) {
		return 0
	}
	n, _ := values[i].(int64)
	return n
}
