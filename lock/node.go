package lock

import (
	"cmp"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// stallTimeout bounds how long a connection waits for its node. It is longer than the node timeout, so callers stop
// waiting first while the connection stays. When a frozen node comes back, a release then still arrives after its
// acquire. A release before its acquire would leave a lock without an owner for one TTL.
const stallTimeout = time.Second

// maxQueued bounds the queue for a node that does not answer.
const maxQueued = 1 << 16

// node is the client side of one Redis node: one connection with one batch in flight. Ops submitted meanwhile are
// queued for the next batch. All ops arrive in the order of their submission.
//
// The only node of a group has two such connections, each for the ops of its half of the resources. With one, the
// node would wait while the client reads and queues, and the client while the node works. (With several nodes these
// waits overlap.)
//
// A caller that finds the connection idle sends by itself. The node's goroutine connects, reads, and sends what was
// queued. So sending to an idle node takes no switch to another goroutine.
type node struct {
	cfg    Node
	name   string
	index  int
	keys   *keys
	stall  time.Duration
	twin   *node         // the other connection, if there is one
	client *redis.Client // see newClient
	onLost func(*node)   // called when the node turns out not to be admitted

	mu      sync.Mutex
	queue   []*op
	flight  []*op // sent in this order, not answered yet
	owed    []*op // releases that are tried later; see resend.go
	busy    bool  // flight is being sent, or awaits its answers
	serving bool  // the link is up, bound to an incarnation, and being read
	sentAt  time.Time
	closed  bool
	link    *link
	bound   *bound
	wake    chan struct{}
	done    chan struct{}

	writing sync.Mutex // guards out, plan, the flight's order, and the link's sending side; locked before mu is unlocked
	out     []byte
	plan    plan

	replies   []reply // used by the goroutine only, like lastReply and extra
	lastReply time.Time
	extra     time.Time // value of lastReply, or sentAt, when the node got extra time

	signs  atomic.Uint32 // signs of life: answers while a link is made, and to calls
	saw    atomic.Pointer[sight]
	change atomic.Pointer[idChange]
}

func newNode(cfg Node, index int, k *keys, nodeTimeout time.Duration, onLost func(*node)) *node {
	stall := max(stallTimeout, 4*nodeTimeout)
	n := &node{
		cfg: cfg, name: cfg.Name, index: index, keys: k, stall: stall, onLost: onLost,
		wake:   make(chan struct{}, 1),
		done:   make(chan struct{}),
		client: newClient(cfg, stall),
	}
	go n.run()
	return n
}

// double gives the node its second connection.
func (n *node) double() {
	n.twin = &node{
		cfg: n.cfg, name: n.name, index: n.index, keys: n.keys, stall: n.stall, onLost: n.onLost, client: n.client,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	go n.twin.run()
}

// lane is the connection for a resource's ops, chosen by a hash of its name, so that they keep their order.
func (n *node) lane(hash uint32) *node {
	if n.twin != nil && hash>>16&1 == 1 {
		return n.twin
	}
	return n
}

// newClient creates the Redis client for what is rare and not on the way of a lease: states, admissions, sweeps, and
// what is displayed. Whatever each acquisition or waiter needs is an op, because here a crowd would wait for one of the
// few connections.
func newClient(cfg Node, stall time.Duration) *redis.Client {
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
	if cfg.watched() {
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

// submit queues ops, and sends them if nothing is in flight. It never waits for the node; the replies go to the ops'
// sinks.
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

// send sends the queue. The caller has locked mu, and nothing is in flight; send unlocks mu. Writing a single call
// never blocks, because the node has answered everything before.
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
	n.out = b.request(n.out[:0], n.keys, &n.plan, live)
	limit := time.Now().Add(n.stall) // not from sentAt: the process may have been suspended since
	_ = k.conn.SetReadDeadline(limit)
	if len(live) > 1 {
		_ = k.conn.SetWriteDeadline(limit)
	}
	if _, err := k.conn.Write(n.out); err != nil {
		_ = k.conn.Close() // the reader sees it, and answers what was sent
	}
	if len(live) > 1 {
		// A single call sets no deadline. If this one stayed, it would end the link during that call.
		_ = k.conn.SetWriteDeadline(time.Time{})
	}
	if cap(n.out) > 1<<20 {
		n.out = nil
	}
}

// drop closes the links, so that the node is asked what it is before its next op.
func (n *node) drop() {
	n.mu.Lock()
	var conn net.Conn
	if n.serving {
		conn = n.link.conn
	}
	n.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	if n.twin != nil {
		n.twin.drop()
	}
}

// close sends what is queued for the node, and waits for it.
func (n *node) close() {
	n.end()
	if n.twin != nil {
		n.twin.end()
	}
	_ = n.client.Close()
}

// end closes one connection.
func (n *node) end() {
	n.mu.Lock()
	n.closed = true
	if n.serving && !n.busy {
		_ = n.link.conn.SetReadDeadline(time.Now())
	}
	n.mu.Unlock()
	n.signal()
	<-n.done
}

func (n *node) deliver(o *op, r reply) {
	r.node = n.index
	o.sink.deliver(r)
}
