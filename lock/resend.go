package lock

import (
	"errors"
	"time"
)

// A link may end while ops are in flight. It is then unknown what the node did with them. Acquires and confirms are
// answered so, because a repeated one would be another message. Extensions too: their caller makes a new round. A
// release may be repeated at any time, because it only deletes the lock of its own attempt, which is over. It is sent
// again at once on the next link. If that link ends too, or cannot be made, its caller gets the error, and the node
// is owed the release until the lock has expired.

// resendEvery is how often a node that is owed a release, and has no other ops, is tried.
const resendEvery = time.Second

// maxOwed bounds what is kept for an unavailable node.
const maxOwed = 1 << 12

// resend queues the releases of a flight whose link ended before everything else in the queue, and returns the other
// ops. The caller has locked mu.
func (n *node) resend(flight []*op) (others []*op) {
	var again []*op
	t := time.Now()
	for _, o := range flight {
		if o.kind != opRelease || o.repeated || t.After(o.expires) {
			others = append(others, o)
			continue
		}
		o.repeated = true
		o.state.Store(opQueued)
		again = append(again, o)
	}
	n.queue = append(again, n.queue...)
	return others
}

// owe keeps copies of the releases among ops that are about to be answered with an error, because the ops themselves
// are reused. A node that was restarted is owed nothing: its locks end with its quarantine. The caller has locked mu.
func (n *node) owe(ops []*op, err error) {
	if n.closed || errors.Is(err, ErrQuarantined) {
		n.owed = nil
		return
	}
	t := time.Now()
	for _, o := range ops {
		if o.kind == opRelease && len(n.owed) < maxOwed && t.Before(o.expires) {
			n.owed = append(n.owed, &op{
				kind: opRelease, node: o.node, resource: o.resource, wakes: o.wakes, ask: o.ask, repeated: true, sink: nobody{},
			})
		}
	}
}

// dropOverdue drops the owed releases whose locks have expired. The caller has locked mu.
func (n *node) dropOverdue() {
	t := time.Now()
	left := n.owed[:0]
	for _, o := range n.owed {
		if t.Before(o.expires) && !n.closed {
			left = append(left, o)
		}
	}
	clear(n.owed[len(left):])
	n.owed = left
}

// settled interprets the reply to an op for all the times that it was sent. A repeated release that finds no lock
// most likely deleted it the first time, and the lock is gone in any case.
func (o *op) settled(r reply) reply {
	if o.repeated && r.err == nil && r.n == codeRefused {
		r.n = 1
	}
	return r
}

// nobody is the sink of ops whose reply is not needed.
type nobody struct{}

func (nobody) deliver(reply) {}
