package node

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"strings"
	"time"
)

func (n *Node) run() {
	defer close(n.done)
	defer n.hangUp()
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	for {
		select {
		case <-n.wake:
		case <-later.C:
		}
		if n.open() {
			n.serve()
		}
		n.mu.Lock()
		again, owes, closed := len(n.queue) > 0, len(n.owed) > 0, n.closed
		n.mu.Unlock()
		switch {
		case again:
			n.signal()
		case closed:
			return
		case owes:
			later.Reset(resendEvery)
		}
	}
}

// open connects, reads the incarnation if needed, and sends the queue. On failure it answers the queued ops.
func (n *Node) open() bool {
	n.mu.Lock()
	n.dropOverdue()
	idle := len(n.queue)+len(n.owed) == 0
	n.mu.Unlock()
	if idle {
		return false
	}
	if err := n.connect(); err != nil {
		n.mu.Lock()
		queue := n.queue
		n.queue = nil
		n.owe(queue)
		n.mu.Unlock()
		for _, o := range queue {
			n.Deliver(o, Reply{Err: err}) // nothing was sent
		}
		return false
	}
	n.Signs.Add(1)
	n.mu.Lock()
	n.serving = true
	n.queue, n.owed = append(n.owed, n.queue...), nil // in the order in which they were submitted
	n.send()
	return true
}

func (n *Node) connect() error {
	if n.link == nil {
		k, err := dialLink(context.Background(), n.Server, n.Stall, &n.Signs)
		if err != nil {
			return ServerError(err)
		}
		n.link = k
	}
	if n.bound != nil {
		return nil
	}
	_ = n.link.Conn.SetDeadline(time.Now().Add(n.Stall))
	nonce, err := n.incarnation()
	if err == nil {
		err = n.loadScripts()
	}
	_ = n.link.Conn.SetDeadline(time.Time{})
	switch {
	case errors.Is(err, ErrEvicts):
		n.leave()
		return err
	case errors.Is(err, ErrQuarantined):
		n.leave()
		n.onLost(n)
		return err
	case err != nil:
		n.hangUp()
		return ServerError(err)
	}
	n.bound = Bind(nonce)
	return nil
}

// incarnation reads the admitted incarnation, unless the server's account of itself contradicts it.
func (n *Node) incarnation() (string, error) {
	vals, err := n.link.do("HMGET", n.keys.H, "@incarnation", "@reign")
	if err != nil || len(vals) != 2 {
		return "", cmp.Or(err, errMalformed)
	}
	nonce, reign := vals[0].Text, vals[1].Text
	said, err := n.link.account()
	switch {
	case err != nil && (n.Server.Watched || !isReplyError(err)):
		return "", err
	case said.Unfit() != nil:
		return "", said.Unfit()
	case nonce == "":
		return "", ErrQuarantined
	}
	return nonce, cmp.Or(n.Server.checkMode(nonce), said.over(reign))
}

// loadScripts loads the scripts of the queues, and the one by which [Locker.Init] tells an emptied node from a new
// one. It does nothing for a login that may not load scripts.
func (n *Node) loadScripts() error {
	texts := [...]string{n.keys.trace(n.Server.DB), waitText, leaveText}
	var out []byte
	for _, text := range texts {
		out = appendBulk(appendBulk(appendBulk(appendHead(out, 3), "SCRIPT"), "LOAD"), text)
	}
	if _, err := n.link.Conn.Write(out); err != nil {
		return err
	}
	for range texts {
		_, err := n.link.reply()
		n.Signs.Add(1)
		refused, ok := errors.AsType[replyError](err)
		if err != nil && !(ok && strings.HasPrefix(refused.Error(), "NOPERM")) {
			return err
		}
	}
	return nil
}

// serve reads the answers to what is in flight and sends what was queued meanwhile, until the link fails, the node is
// lost, or the Locker is closed.
func (n *Node) serve() {
	for !n.finished() {
		again, err := n.receive()
		switch {
		case err != nil:
			n.fail(err)
			return
		case again:
			continue
		}
		n.mu.Lock()
		flight := n.flight
		n.mu.Unlock()
		lost, err := n.answer(flight)
		if err != nil {
			n.fail(err)
			return
		}
		if len(flight) > 1 {
			// Callers woken by these answers are about to submit again. Yielding lets them, so that the next batch is
			// full, too.
			runtime.Gosched()
		}
		n.mu.Lock()
		n.flight = n.flight[:0] // later submissions were not made by these callers
		switch {
		case n.link.in.Buffered() > 0:
			n.mu.Unlock()
			n.fail(errMalformed) // more answers than requests: the next one would be taken for another request's
			return
		case lost:
			// It may have been admitted again meanwhile: check before the next call.
			n.serving, n.busy = false, false
			n.mu.Unlock()
			n.leave()
			n.onLost(n)
			return
		case len(n.queue) > 0:
			n.send()
		default:
			n.busy = false
			n.mu.Unlock()
		}
	}
}

// receive waits for the node's next message. It reports whether to look again first.
func (n *Node) receive() (again bool, err error) {
	_, err = n.link.in.Peek(1)
	if isTimeout(err) && n.patient() {
		return true, nil
	}
	return false, err
}

// finished reports whether the node is closed and owes no answer. A caller
// that closes it after this check wakes the reader.
func (n *Node) finished() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed && !n.busy {
		n.serving = false
		return true
	}
	return false
}

// extraTime is how long a link may be read after its deadline, for data that has arrived.
const extraTime = 50 * time.Millisecond

// patient reports whether to continue waiting after the link's deadline. In a process that did not run meanwhile the
// deadline says nothing about the node, whose answer may have arrived: hence the extra time.
func (n *Node) patient() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	last := n.sentAt
	if n.lastReply.After(last) {
		last = n.lastReply
	}
	switch {
	case n.busy && time.Since(last) < n.Stall:
		return true // the deadline of an earlier batch
	case n.busy && n.extra.Equal(last):
		return false
	case n.busy:
		n.extra = last
		_ = n.link.Conn.SetReadDeadline(time.Now().Add(extraTime))
		return true
	}
	n.writing.Lock()
	defer n.writing.Unlock()
	_ = n.link.Conn.SetReadDeadline(time.Time{})
	return !n.closed
}

// answer reads the replies to a flight and delivers them. It reports whether the node turned out not to be admitted.
// After an error the flight still has all the ops that were not answered.
func (n *Node) answer(flight []*Op) (lost bool, err error) {
	if len(flight) == 0 {
		return false, errMalformed // an answer without a request
	}
	n.replies = n.replies[:0]
	n.writing.Lock() // the sender has arranged the flight
	sizes := n.plan.sizes
	n.writing.Unlock()
	for i, size := range sizes {
		for again := i > 0; again; {
			if again, err = n.receive(); err != nil {
				return lost, err
			}
		}
		n.lastReply = time.Now()
		_ = n.link.Conn.SetReadDeadline(n.lastReply.Add(n.Stall))
		at := len(n.replies)
		vals, err := n.link.reply()
		if err != nil && !isReplyError(err) {
			return lost, err
		}
		n.Signs.Add(1)
		n.replies = parse(n.replies, flight[at:at+size], vals, err)
		if errors.Is(n.replies[at].Err, errMalformed) {
			return lost, errMalformed
		}
	}
	return n.settle(flight), nil
}

// settle delivers the replies to a flight, except those to releases that are sent again.
func (n *Node) settle(flight []*Op) (lost bool) {
	var again, last []*Op
	t := time.Now()
	for i, o := range flight {
		err := n.replies[i].Err
		lost = lost || o.Kind < opKinds && errors.Is(err, ErrQuarantined) // a look that finds no script says nothing
		switch {
		case err == nil || o.Kind != OpRelease:
		case o.repeatable(t):
			again = append(again, o)
		default:
			last = append(last, o)
		}
	}
	if len(again)+len(last) > 0 {
		n.refused(again, last)
	}
	for i, o := range flight {
		if len(again) > 0 && again[0] == o {
			again = again[1:]
			continue
		}
		n.Deliver(o, o.settled(n.replies[i])) // from here on the op may be reused
	}
	return lost
}

// fail answers what was in flight on a broken link: whether it took effect is unknown. Releases are sent once more on
// the next link, like queued ops.
func (n *Node) fail(err error) {
	n.mu.Lock()
	n.writing.Lock() // the sender has seen its ops
	flight := n.flight
	n.flight = nil
	if !n.busy {
		flight = nil
	}
	n.serving, n.busy = false, false
	n.writing.Unlock()
	unknown := n.resend(flight)
	n.owe(unknown)
	n.mu.Unlock()
	n.hangUp()
	for _, o := range unknown {
		n.Deliver(o, failed(err))
	}
}

// leave forgets the incarnation of a node that grants nothing. A link that is older than a second is dropped: the
// address may lead to another server by now.
func (n *Node) leave() {
	n.bound = nil
	if time.Since(n.link.made) > time.Second {
		n.hangUp()
	}
}

// hangUp drops the link and what was known of the incarnation.
func (n *Node) hangUp() {
	if n.link != nil {
		_ = n.link.Conn.Close()
		n.link = nil
	}
	n.bound = nil
}
