// Package node is the client of one Redis node: its connections, its scripts, and what it says of its state.
//
// The guarantee: ops arrive in the order of their submission, on one connection, and each is sent once, except a release,
// which may be repeated. Whether an op took effect that was not answered is unknown.
package node

import (
	"cmp"
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencegate/fencegate/fence/leasing"
)

// StallTimeout bounds how long a connection waits for its node. It is longer than the node timeout, so callers stop
// waiting first while the connection stays. When a frozen node comes back, a release then still arrives after its
// acquire. A release before its acquire would leave a lock without an owner for one TTL.
const StallTimeout = time.Second

// maxQueued bounds the queue for a node that does not answer.
const maxQueued = 1 << 16

// Node is the client side of one Redis node: one connection with one batch in flight. Ops submitted during a flight are
// queued for the next batch. All ops arrive in the order of their submission.
//
// The only node of a group has two such connections, each for the ops of its half of the resources. With one, the
// node would wait while the client reads and queues, and the client while the node works. (With several nodes these
// waits overlap.)
//
// A caller that finds the connection idle sends by itself. The node's goroutine connects, reads, and sends what was
// queued. So sending to an idle node takes no switch to another goroutine.
type Node struct {
	Server Server
	Name   string
	Index  int
	keys   *Keys
	Stall  time.Duration
	twin   *Node         // the other connection, if there is one
	client *redis.Client // see newClient
	onLost func(*Node)   // called when the node turns out not to be admitted

	mu      sync.Mutex
	queue   []*Op
	flight  []*Op // sent in this order, not answered yet
	owed    []*Op // releases that are tried later; see owe
	busy    bool  // flight is being sent, or awaits its answers
	serving bool  // the link is up, bound to an incarnation, and being read
	sentAt  time.Time
	closed  bool
	link    *link
	bound   *Bound
	wake    chan struct{}
	done    chan struct{}

	writing sync.Mutex // guards out, plan, the flight's order, and the link's sending side; locked before mu is unlocked
	out     []byte
	plan    plan

	replies   []Reply // used by the goroutine only, like lastReply and extra
	lastReply time.Time
	extra     time.Time // value of lastReply, or sentAt, when the node got extra time

	Signs atomic.Uint32 // signs of life: answers while a link is made, and to calls
}

func New(cfg Server, index int, k *Keys, nodeTimeout time.Duration, onLost func(*Node)) *Node {
	stall := max(StallTimeout, 4*nodeTimeout)
	n := &Node{
		Server: cfg, Name: cfg.Name, Index: index, keys: k, Stall: stall, onLost: onLost,
		wake:   make(chan struct{}, 1),
		done:   make(chan struct{}),
		client: newClient(cfg, stall),
	}
	go n.run()
	return n
}

// Double gives the node its second connection.
func (n *Node) Double() {
	n.twin = &Node{
		Server: n.Server, Name: n.Name, Index: n.Index, keys: n.keys, Stall: n.Stall, onLost: n.onLost, client: n.client,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	go n.twin.run()
}

// Lane is the connection for a resource's ops, chosen by a hash of its name, so that they keep their order.
func (n *Node) Lane(hash uint32) *Node {
	if n.twin != nil && hash>>16&1 == 1 {
		return n.twin
	}
	return n
}

// newClient creates the Redis client for what is rare and not on the way of a lease: states, admissions, sweeps, and
// what is displayed. Whatever each acquisition or waiter needs is an op, because here a crowd would wait for one of the
// few connections.
func newClient(cfg Server, stall time.Duration) *redis.Client {
	options := &redis.Options{
		Addr:   cmp.Or(cfg.Addr, cfg.Name), // for errors: the dialer has the real address
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return cfg.Dial(ctx) },
		CredentialsProviderContext: func(context.Context) (string, string, error) {
			return cfg.Login()
		},
		DB:                    cfg.DB,
		Protocol:              2,
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		DialTimeout:           stall,
		ReadTimeout:           stall,
		WriteTimeout:          stall,
		PoolSize:              4,
		PipelinePoolSize:      -1,
		ConnMaxLifetime:       5 * time.Second, // the address may lead to another server by now
		DisableIdentity:       true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
	if cfg.Watched {
		options.ConnMaxIdleTime = time.Second
		options.OnConnect = func(ctx context.Context, c *redis.Conn) error {
			role, err := c.Do(ctx, "ROLE").Slice()
			if err == nil && (len(role) == 0 || role[0] != "master") {
				err = errNotPrimary
			}
			return err
		}
	}
	return redis.NewClient(options)
}

// Submit queues ops, and sends them if nothing is in flight. It never waits for the node; the replies go to the ops'
// sinks.
func (n *Node) Submit(ops ...*Op) {
	n.mu.Lock()
	var err error
	switch {
	case n.closed:
		err = leasing.ErrClosed
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
		o.State.Store(opAbandoned)
		n.Deliver(o, Reply{Err: err})
	}
}

func (n *Node) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// send sends the queue. The caller has locked mu, and nothing is in flight; send unlocks mu. Writing a single call
// never blocks, because the node has answered everything before.
func (n *Node) send() {
	queue := n.queue
	n.queue = n.flight[:0]
	n.flight = queue
	live := queue[:0]
	n.sentAt = time.Now()
	for _, o := range queue {
		switch {
		case n.sentAt.After(o.Expires) && o.Abandon():
			n.Deliver(o, Reply{Err: ErrNodeTimeout})
		case !o.State.CompareAndSwap(OpQueued, opSent):
			n.Deliver(o, Reply{Err: ErrNodeTimeout}) // abandoned
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
	n.out = b.request(n.out[:0], n.keys, &n.plan, live)
	limit := time.Now().Add(n.Stall) // not from sentAt: the process may have been suspended since
	_ = k.Conn.SetReadDeadline(limit)
	if len(live) > 1 {
		_ = k.Conn.SetWriteDeadline(limit)
	}
	if _, err := k.Conn.Write(n.out); err != nil {
		_ = k.Conn.Close() // the reader sees it, and answers what was sent
	}
	if len(live) > 1 {
		// A single call sets no deadline. If this one stayed, it would end the link during that call.
		_ = k.Conn.SetWriteDeadline(time.Time{})
	}
	if cap(n.out) > 1<<20 {
		n.out = nil
	}
}

// Drop closes the links, so that the node is asked what it is before its next op.
func (n *Node) Drop() {
	n.mu.Lock()
	var conn net.Conn
	if n.serving {
		conn = n.link.Conn
	}
	n.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	if n.twin != nil {
		n.twin.Drop()
	}
}

// Close sends what is queued for the node, and waits for it.
func (n *Node) Close() {
	n.end()
	if n.twin != nil {
		n.twin.end()
	}
	_ = n.client.Close()
}

// end closes one connection.
func (n *Node) end() {
	n.mu.Lock()
	n.closed = true
	if n.serving && !n.busy {
		_ = n.link.Conn.SetReadDeadline(time.Now())
	}
	n.mu.Unlock()
	n.signal()
	<-n.done
}

func (n *Node) Deliver(o *Op, r Reply) {
	r.Node = n.Index
	o.Sink.Deliver(r)
}

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

// loadScripts loads the scripts of the queues, and the one by which a first start tells an emptied node from a new
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

// serve reads the answers to what is in flight and sends what was queued, until the link fails, the node is
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
			// It may have been admitted again: check before the next call.
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

// patient reports whether to continue waiting after the link's deadline. In a process that did not run the
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
