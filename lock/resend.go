package lock

import (
	"errors"
	"time"
)

// A link may end while ops are on their way: nobody knows then what the node did
// with them. Acquires and confirms are answered so, since a repeated one would be
// another message. So are extensions, which their caller makes again as a new
// round. A release may be sent as often as one likes: it deletes the lock of its
// own attempt, which is over. It is sent again at once on the next link. Where that
// link ends too, or cannot be made, its caller hears so, and the node is owed the
// release until the lock is gone by itself.

// resendEvery is how often a node that is owed a release, and is asked nothing else,
// is tried.
const resendEvery = time.Second

// maxOwed bounds what is kept for a node that is away.
const maxOwed = 1 << 12

// resend queues the releases of a flight whose link ended, before whatever is
// queued, and returns the other ops. The caller has locked mu.
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

// owe keeps copies of the releases among ops that are about to be answered with an
// error: the ops themselves are another's then. A node that lost its run is owed
// nothing: what it still holds ends with its quarantine. The caller has locked mu.
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

// dropOverdue forgets the owed releases whose locks are gone by themselves. The
// caller has locked mu.
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

// settled is what the reply to an op says of all the times that it was sent: a
// repeated release that finds nothing to delete most likely did so the first time,
// and the lock is gone in any case.
func (o *op) settled(r reply) reply {
	if o.repeated && r.err == nil && r.n == codeRefused {
		r.n = 1
	}
	return r
}

// nobody waits for the reply.
type nobody struct{}

func (nobody) deliver(reply) {}
