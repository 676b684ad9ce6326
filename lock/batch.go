package lock

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// maxSegment bounds one batch script: Lua's unpack has a limit, and other
// clients of the node wait while a script runs.
const maxSegment = 128

// segments cuts ops, in their order, into what one script call can do: several
// acquires and releases of different resources, or a single op.
//
// A batch may reorder its ops, so it must not hold a resource twice: an acquire
// that straggles and its own release in one batch left ghost locks.
func segments(into [][]*op, ops []*op) [][]*op {
	begin := 0
	for i, o := range ops {
		if i > begin && !joins(ops[begin:i], o) {
			into = append(into, ops[begin:i])
			begin = i
		}
	}
	return append(into, ops[begin:])
}

func joins(segment []*op, o *op) bool {
	if len(segment) == maxSegment || !batchable(o) || !batchable(segment[0]) {
		return false
	}
	for _, other := range segment {
		if other.key == o.key {
			return false
		}
	}
	return true
}

func batchable(o *op) bool { return o.kind == opAcquire || o.kind == opRelease }

// args is the script call for a segment.
func (b *bound) args(k keys, seg []*op) []any {
	if len(seg) > 1 {
		return b.batchArgs(k, seg)
	}
	o := seg[0]
	sha := b.sha[o.kind]
	switch o.kind {
	case opAcquire:
		return []any{"EVALSHA", sha, 2, k.h, o.key, o.field, o.owner, o.holder, o.ttl, o.n}
	case opConfirm:
		return []any{"EVALSHA", sha, 2, k.h, o.key, o.field, o.owner, o.n}
	case opExtend:
		return []any{"EVALSHA", sha, 2, k.h, o.key, o.owner, o.ttl}
	default:
		return []any{"EVALSHA", sha, 2, k.h, o.key, o.owner}
	}
}

func (b *bound) batchArgs(k keys, seg []*op) []any {
	acquires := 0
	for _, o := range seg {
		if o.kind == opAcquire {
			acquires++
		}
	}
	args := make([]any, 0, 6+5*len(seg))
	args = append(args, "EVALSHA", b.sha[opKinds], 1+len(seg), k.h)
	for o := range inOrder(seg) {
		args = append(args, o.key)
	}
	args = append(args, acquires, len(k.lockPrefix))
	for o := range inOrder(seg) {
		args = append(args, o.owner)
		if o.kind == opAcquire {
			args = append(args, o.ttl, o.n, o.holder)
		}
	}
	return args
}

// inOrder yields the acquires of a segment, then the releases, as the batch
// script takes them.
func inOrder(seg []*op) func(yield func(*op) bool) {
	return func(yield func(*op) bool) {
		for _, kind := range [...]opKind{opAcquire, opRelease} {
			for _, o := range seg {
				if o.kind == kind && !yield(o) {
					return
				}
			}
		}
	}
}

// parseReply reads the flat array of a single op's script.
func parseReply(cmd *redis.Cmd) reply {
	values, err := cmd.Slice()
	switch {
	case err != nil:
		return failed(err)
	case len(values) == 0:
		return reply{err: errMalformed, sent: true}
	case integer(values, 0) == codeUnknown:
		return reply{err: ErrQuarantined}
	}
	r := reply{sent: true, n: integer(values, 0), pttl: integer(values, 1), floor: integer(values, 2)}
	if len(values) > 3 {
		r.holder, _ = values[3].(string)
	}
	return r
}

// parseBatch reads the batch script's flat array: a reply for each op of the
// segment, in the segment's order.
func parseBatch(into []reply, seg []*op, cmd *redis.Cmd) []reply {
	values, err := cmd.Slice()
	if err == nil && (len(values) < len(seg) || (len(values)-len(seg))%4 != 0) {
		err = errMalformed
	}
	if err != nil {
		// Any of the acquires may have been granted.
		for range seg {
			into = append(into, failed(err))
		}
		return into
	}
	place := make([]int, 0, len(seg)) // of the script's answers in the segment
	for _, kind := range [...]opKind{opAcquire, opRelease} {
		for i, o := range seg {
			if o.kind == kind {
				place = append(place, i)
			}
		}
	}
	into = append(into, make([]reply, len(seg))...)
	for at, i := range place {
		into[i] = reply{sent: true, n: integer(values, at)}
		if into[i].n == codeUnknown {
			into[i] = reply{err: ErrQuarantined}
		}
	}
	for tail := values[len(seg):]; len(tail) > 0; tail = tail[4:] {
		if at := integer(tail, 0); at >= 1 && at <= int64(len(place)) {
			r := &into[place[at-1]]
			r.pttl, r.floor = integer(tail, 1), integer(tail, 2)
			r.holder, _ = tail[3].(string)
		}
	}
	return into
}

var errMalformed = errors.New("malformed reply")

func failed(err error) reply {
	err = serverError(err)
	return reply{err: err, sent: !errors.Is(err, ErrQuarantined)}
}

func integer(values []any, i int) int64 {
	if i >= len(values) {
		return 0
	}
	n, _ := values[i].(int64)
	return n
}
