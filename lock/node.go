package lock

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// opKind is what an op asks of a node.
type opKind uint8

const (
	opAcquire opKind = iota // phase 1
	opConfirm               // phase 2
	opExtend
	opRelease
	opKinds // how many there are
)

// op is one call of a script on one node.
type op struct {
	kind     opKind
	node     int
	resource string
	wakes    bool // release: this node may have a queue of waiters
	ask
	state atomic.Uint32
	sink  sink
}

// ask is what an op says to each node alike.
type ask struct {
	owner   string
	holder  string
	ttl     int64     // ms
	n       int64     // acquire: floor; confirm: token
	expires time.Time // not sent from then on
}

// sink takes the reply to an op: exactly one for each op that was submitted.
// It must not block.
type sink interface{ deliver(r reply) }

// States of an op. Whoever moves it away from queued decides.
const (
	opQueued uint32 = iota
	opSent
	opAbandoned
)

// abandon takes an op back. It reports false where the op was already sent: it
// may take effect at any time from then on.
func (o *op) abandon() bool { return o.state.CompareAndSwap(opQueued, opAbandoned) }

// Codes of a script's reply, other than a positive number.
const (
	codeRefused   = 0  // acquire: held; confirm, extend: lost; release: not ours
	codeUnknown   = -1 // the node is not admitted in this incarnation
	codeExhausted = -2
	codeMaxTTL    = -3
)

// reply is a node's answer to an op.
type reply struct {
	node   int
	n      int64 // the code, or the counter of a grant
	pttl   int64 // refused acquire: ms; else the node's maximum for codeMaxTTL
	floor  int64 // refused acquire: counter
	holder string
	err    error // no answer: whether the op took effect is unknown, unless sent is false
	sent   bool
}

// stallTimeout bounds how long a connection waits for its node. It is longer
// than the node timeout on purpose: callers stop waiting first, while the
// connection stays, so that a release still arrives behind its acquire when a
// frozen node comes back. A release that overtook its acquire would leave a
// lock that nobody owns, for one TTL.
const stallTimeout = time.Second

// maxQueued bounds what piles up for a node that does not answer.
const maxQueued = 1 << 16

// node is the client side of one Redis node: one connection, on which one
// batch is in flight; what is submitted meanwhile gathers for the next one.
// Everything arrives in the order in which it was submitted.
//
// Who finds the connection idle sends by itself; the node's goroutine connects,
// reads, and sends what has gathered. So an idle node costs a caller no switch
// to another goroutine on the way out.
type node struct {
	cfg    Node
	name   string
	index  int
	keys   keys
	stall  time.Duration
	client *redis.Client // for everything that is not an op
	onLost func(*node)   // called when the node turns out not to be admitted

	mu      sync.Mutex
	queue   []*op
	flight  []*op // sent in this order, not answered yet
	busy    bool  // flight is on its way, or being sent
	serving bool  // the link is up, bound to an incarnation, and being read
	sentAt  time.Time
	closed  bool
	link    *link
	bound   *bound
	wake    chan struct{}
	done    chan struct{}

	writing sync.Mutex // of out and of the link's sending side; locked before mu is unlocked
	out     []byte

	replies []reply // of the goroutine only
}

func newNode(cfg Node, index int, k keys, nodeTimeout time.Duration, onLost func(*node)) *node {
	stall := max(stallTimeout, 4*nodeTimeout)
	n := &node{
		cfg: cfg, name: cfg.Name, index: index, keys: k, stall: stall, onLost: onLost,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
		client: redis.NewClient(&redis.Options{
			Network:               network(cfg.Addr),
			Addr:                  cfg.Addr,
			Username:              cfg.Username,
			Password:              cfg.Password,
			DB:                    cfg.DB,
			TLSConfig:             cfg.TLS,
			Protocol:              2,
			MaxRetries:            -1,
			DialerRetries:         1,
			ContextTimeoutEnabled: true,
			DialTimeout:           stall,
			ReadTimeout:           stall,
			WriteTimeout:          stall,
			PoolSize:              4,
			PipelinePoolSize:      -1,
			DisableIdentity:       true,
			MaintNotificationsConfig: &maintnotifications.Config{
				Mode: maintnotifications.ModeDisabled,
			},
		}),
	}
	go n.run()
	return n
}

// submit queues ops, and sends them where nothing is in flight. It never waits
// for the node; the replies come to the ops' sinks.
func (n *node) submit(ops ...*op) {
	n.mu.Lock()
	var err error
	switch {
	case n.closed:
		err = ErrClosed
	case len(n.queue) >= maxQueued:
		err = ErrNodeTimeout
	default:
		n.queue = append(n.queue, ops...)
		switch {
		case !n.serving:
			n.mu.Unlock()
			n.signal()
		case n.busy:
			n.mu.Unlock()
		default:
			n.send()
		}
		return
	}
	n.mu.Unlock()
	for _, o := range ops {
		o.state.Store(opAbandoned)
		n.deliver(o, reply{err: err})
	}
}

func (n *node) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// send puts what is queued on its way. The caller has locked mu, while nothing
// is in flight; send unlocks it. A single call never blocks in its write: the
// node has answered all that was sent before.
func (n *node) send() {
	queue := n.queue
	n.queue = n.flight[:0]
	n.flight = queue
	live := queue[:0]
	n.sentAt = time.Now()
	for _, o := range queue {
		switch {
		case n.sentAt.After(o.expires) && o.abandon():
			n.deliver(o, reply{err: ErrNodeTimeout})
		case !o.state.CompareAndSwap(opQueued, opSent):
			n.deliver(o, reply{err: ErrNodeTimeout}) // abandoned
		default:
			live = append(live, o)
		}
	}
	clear(queue[len(live):])
	n.flight = live
	n.busy = len(live) > 0
	if !n.busy {
		n.mu.Unlock()
		return
	}
	n.writing.Lock()
	k, b := n.link, n.bound
	n.mu.Unlock()
	defer n.writing.Unlock()
	n.out = b.request(n.out[:0], &n.keys, live)
	limit := n.sentAt.Add(n.stall)
	_ = k.conn.SetReadDeadline(limit)
	if len(live) > 1 {
		_ = k.conn.SetWriteDeadline(limit)
	}
	if _, err := k.conn.Write(n.out); err != nil {
		_ = k.conn.Close() // the reader sees it, and answers for what was sent
	}
	if cap(n.out) > 1<<20 {
		n.out = nil
	}
}

// close lets the node send what is queued, and waits for it.
func (n *node) close() {
	n.mu.Lock()
	n.closed = true
	if n.serving && !n.busy {
		_ = n.link.conn.SetReadDeadline(time.Now())
	}
	n.mu.Unlock()
	n.signal()
	<-n.done
	_ = n.client.Close()
}

func (n *node) run() {
	defer close(n.done)
	defer n.hangUp()
	for range n.wake {
		if n.open() {
			n.serve()
		}
		n.mu.Lock()
		again, closed := len(n.queue) > 0, n.closed
		n.mu.Unlock()
		switch {
		case again:
			n.signal()
		case closed:
			return
		}
	}
}

// open connects and learns the incarnation where that is needed, and sends what
// is queued. Where it fails, it answers what is queued.
func (n *node) open() bool {
	n.mu.Lock()
	idle := len(n.queue) == 0
	n.mu.Unlock()
	if idle {
		return false
	}
	if err := n.connect(); err != nil {
		n.mu.Lock()
		queue := n.queue
		n.queue = nil
		n.mu.Unlock()
		for _, o := range queue {
			n.deliver(o, reply{err: err}) // nothing was sent
		}
		return false
	}
	n.mu.Lock()
	n.serving = true
	n.send()
	return true
}

func (n *node) connect() error {
	if n.link == nil {
		k, err := dialLink(context.Background(), n.cfg, n.stall)
		if err != nil {
			return serverError(err)
		}
		n.link = k
	}
	if n.bound != nil {
		return nil
	}
	_ = n.link.conn.SetDeadline(time.Now().Add(n.stall))
	vals, err := n.link.do("HGET", n.keys.h, "@incarnation")
	_ = n.link.conn.SetDeadline(time.Time{})
	switch {
	case err != nil:
		n.hangUp()
		return serverError(err)
	case len(vals) != 1 || vals[0].text == "":
		n.onLost(n)
		return ErrQuarantined
	}
	n.bound = bindScripts(vals[0].text)
	return nil
}

// serve reads the answers to what is in flight and sends what gathered
// meanwhile, until the link fails, the node is lost, or the Locker closed.
func (n *node) serve() {
	for {
		if _, err := n.link.in.Peek(1); err != nil {
			var netErr net.Error
			if errors.As(err, &netErr) && netErr.Timeout() && n.patient() {
				continue
			}
			n.fail(err)
			return
		}
		n.mu.Lock()
		flight := n.flight
		n.mu.Unlock()
		lost, err := n.answer(flight)
		if err != nil {
			n.fail(err)
			return
		}
		// Callers that these answers woke are about to submit again: let them
		// first, so that the next batch is a full one too.
		runtime.Gosched()
		n.mu.Lock()
		switch {
		case lost:
			// It may have been admitted again meanwhile: look before the next call.
			n.serving, n.busy, n.bound = false, false, nil
			n.mu.Unlock()
			n.onLost(n)
			return
		case len(n.queue) > 0:
			n.send()
		default:
			n.busy = false
			if n.closed {
				n.serving = false
				n.mu.Unlock()
				return
			}
			n.mu.Unlock()
		}
	}
}

// patient reports whether to go on waiting after the link's deadline passed.
func (n *node) patient() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy {
		return time.Since(n.sentAt) < n.stall // the deadline of an earlier batch
	}
	n.writing.Lock()
	defer n.writing.Unlock()
	_ = n.link.conn.SetReadDeadline(time.Time{})
	return !n.closed
}

// answer reads the replies to a flight and delivers them. It reports whether
// the node turned out not to be admitted. With an error all that were not
// answered are left.
func (n *node) answer(flight []*op) (lost bool, err error) {
	if len(flight) == 0 {
		return false, errMalformed // an answer that nobody asked for
	}
	n.replies = n.replies[:0]
	for at := 0; at < len(flight); {
		size := segment(flight[at:])
		vals, err := n.link.reply()
		var fromServer replyError
		if err != nil && !errors.As(err, &fromServer) {
			return lost, err
		}
		if size == 1 {
			n.replies = append(n.replies, parseReply(vals, err))
		} else {
			n.replies = parseBatch(n.replies, size, vals, err)
		}
		at += size
	}
	for i, o := range flight {
		lost = lost || errors.Is(n.replies[i].err, ErrQuarantined)
		n.deliver(o, n.replies[i]) // from here on the op may be another's
	}
	return lost, nil
}

// fail answers for what was in flight on a link that is gone. What is queued
// goes over the next one.
func (n *node) fail(err error) {
	n.mu.Lock()
	n.writing.Lock() // whoever is sending has seen its ops
	flight := n.flight
	n.flight = nil
	if !n.busy {
		flight = nil
	}
	n.serving, n.busy = false, false
	n.writing.Unlock()
	n.mu.Unlock()
	n.hangUp()
	for _, o := range flight {
		n.deliver(o, failed(err))
	}
}

// hangUp drops the link, and with it what is known of the incarnation.
func (n *node) hangUp() {
	if n.link != nil {
		_ = n.link.conn.Close()
		n.link = nil
	}
	n.bound = nil
}

func (n *node) deliver(o *op, r reply) {
	r.node = n.index
	o.sink.deliver(r)
}
