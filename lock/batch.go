package lock

import "errors"

// maxSegment bounds one batch script: Lua's unpack has a limit, and other
// clients of the node wait while a script runs.
const maxSegment = 256

// segment is how many of the first ops one script call does: several acquires
// and releases, or a single op.
//
// The batch script does its ops in their order and each sees what the one
// before it did, so a resource may come in it more than once. (A batch that
// did its acquires before its releases left ghost locks: a straggling acquire
// and its own release were in one batch. And cutting it at each repeated
// resource made batches of one or two where callers release without waiting.)
func segment(ops []*op) int {
	for i, o := range ops {
		if !batchable(o) {
			return max(i, 1)
		}
		if i == maxSegment {
			return i
		}
	}
	return len(ops)
}

func batchable(o *op) bool { return o.kind == opAcquire || o.kind == opRelease }

// request appends the script calls for ops, in their order.
func (b *bound) request(out []byte, k *keys, ops []*op) []byte {
	for len(ops) > 0 {
		size := segment(ops)
		if size == 1 {
			out = b.single(out, k, ops[0])
		} else {
			out = b.batch(out, k, ops[:size])
		}
		ops = ops[size:]
	}
	return out
}

func (b *bound) single(out []byte, k *keys, o *op) []byte {
	args := [opKinds]int{opAcquire: 4, opConfirm: 3, opExtend: 2, opRelease: 1}[o.kind]
	named := 2
	if o.wakes {
		named, args = 3, args+2
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
	case opExtend:
		out = appendBulk(out, o.owner)
		out = appendNumber(out, o.ttl)
	default:
		if o.wakes {
			out = appendBulk(out, k.waitPrefix, o.resource)
		}
		out = appendBulk(out, o.owner)
		if o.wakes {
			out = appendBulk(out, o.resource)
			out = appendBulk(out, k.wakePrefix)
		}
	}
	return out
}

func (b *bound) batch(out []byte, k *keys, seg []*op) []byte {
	args := 3 + 2*len(seg)
	for _, o := range seg {
		if o.kind == opAcquire && o.n > 0 {
			args++
		}
	}
	out = appendHead(out, 4+len(seg)+args)
	out = append(out, b.call[opKinds]...)
	out = appendNumber(out, int64(1+len(seg)))
	out = append(out, k.hBulk...)
	for _, o := range seg {
		out = appendBulk(out, k.lockPrefix, o.resource)
	}
	out = appendNumber(out, int64(len(k.lockPrefix)))
	out = appendBulk(out, k.waitPrefix)
	out = appendBulk(out, k.wakePrefix)
	for _, o := range seg {
		switch {
		case o.wakes:
			out = appendBulk(out, o.owner)
			out = append(out, "$3\r\n0.5\r\n"...)
		case o.kind == opRelease:
			out = appendBulk(out, o.owner)
			out = append(out, "$1\r\n0\r\n"...)
		case o.n > 0:
			out = appendBulk(out, o.owner, o.holder)
			out = appendNumber(out, -o.ttl)
			out = appendNumber(out, o.n)
		default:
			out = appendBulk(out, o.owner, o.holder)
			out = appendNumber(out, o.ttl)
		}
	}
	return out
}

// parseReply reads the flat array of a single op's script.
func parseReply(vals []value, err error) reply {
	switch {
	case err != nil:
		return failed(err)
	case len(vals) == 0:
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

// parseBatch reads the batch script's flat array: a reply for each op.
func parseBatch(into []reply, ops int, vals []value, err error) []reply {
	if err == nil && (len(vals) < ops || (len(vals)-ops)%4 != 0) {
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
