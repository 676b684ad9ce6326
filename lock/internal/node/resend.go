package node

import "time"

// A link may end while ops are in flight. It is then unknown what the node did with them. Acquires and confirms are
// answered so, because a repeated one would be another message. Extensions too: their caller makes a new round. A
// release may be repeated at any time, because it only deletes the lock of its own attempt, which is over. It is sent
// again at once on the next link. So is one that the node answers with an error: a script that also acquires fails
// where a release alone does not, for example without memory. A release that is sent again has a call of its own. If
// it fails again, its caller gets the error, and the node is owed the release until the lock has expired, in whatever
// incarnation: a node that restarts may keep its locks for longer than its quarantine.

// resendEvery is how often a node that is owed a release is tried.
const resendEvery = time.Second

// maxOwed bounds what is kept for an unavailable node.
const maxOwed = 1 << 12

// resend queues the releases of a flight whose link ended before everything else in the queue, and returns the other
// ops. The caller has locked mu.
func (n *Node) resend(flight []*Op) (others []*Op) {
	var again []*Op
	t := time.Now()
	for _, o := range flight {
		if o.repeatable(t) {
			again = append(again, o)
		} else {
			others = append(others, o)
		}
	}
	n.repeat(again)
	return others
}

// repeatable reports whether an op without a useful answer is sent again before its caller gets the error.
func (o *Op) repeatable(t time.Time) bool {
	return o.Kind == OpRelease && !o.Repeated && !t.After(o.Expires)
}

// repeat queues ops before everything else in the queue. The caller has locked mu.
func (n *Node) repeat(ops []*Op) {
	for _, o := range ops {
		o.Repeated = true
		o.State.Store(OpQueued)
	}
	n.queue = append(ops, n.queue...)
}

// owe keeps copies of the releases among ops that are about to be answered with an error, because the ops themselves
// are reused. The caller has locked mu.
func (n *Node) owe(ops []*Op) {
	if n.closed {
		n.owed = nil
		return
	}
	t := time.Now()
	for _, o := range ops {
		if o.Kind == OpRelease && len(n.owed) < maxOwed && t.Before(o.Expires) {
			n.owed = append(n.owed, &Op{
				Kind: OpRelease, Node: o.Node, Resource: o.Resource, Wakes: o.Wakes, Ask: o.Ask, Repeated: true, Sink: nobody{},
			})
		}
	}
}

// refused keeps the releases that the node answered with an error: the first are queued again, and the node is owed
// the last, which have been repeated already.
func (n *Node) refused(again, last []*Op) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.repeat(again)
	none := len(n.owed) == 0
	if n.owe(last); none && len(n.owed) > 0 {
		time.AfterFunc(resendEvery, n.sendOwed)
	}
}

// sendOwed sends what the node is owed on a link that is up. On the next link, open does.
func (n *Node) sendOwed() {
	n.mu.Lock()
	n.dropOverdue()
	if !n.serving || len(n.owed) == 0 {
		n.mu.Unlock()
		return
	}
	n.queue, n.owed = append(n.owed, n.queue...), nil
	if n.busy {
		n.mu.Unlock()
		return
	}
	n.send()
}

// dropOverdue drops the owed releases whose locks have expired. The caller has locked mu.
func (n *Node) dropOverdue() {
	t := time.Now()
	left := n.owed[:0]
	for _, o := range n.owed {
		if t.Before(o.Expires) && !n.closed {
			left = append(left, o)
		}
	}
	clear(n.owed[len(left):])
	n.owed = left
}

// settled interprets the reply to an op for all the times that it was sent. A repeated release that finds no lock
// most likely deleted it the first time, and the lock is gone in any case.
func (o *Op) settled(r Reply) Reply {
	if o.Repeated && r.Err == nil && r.N == CodeRefused {
		r.N = 1
	}
	return r
}

// nobody is the sink of ops whose reply is not needed.
type nobody struct{}

func (nobody) Deliver(Reply) {}
