// Package node is the client of one Redis node: its connections, its scripts, and what it says of its state.
//
// The guarantee: ops arrive in the order of their submission, on one connection, and each is sent once, except a release,
// which may be repeated. Whether an op took effect that was not answered is unknown.
package node

import (
	"cmp"
	"context"
	"net"
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

// Node is the client side of one Redis node: one connection with one batch in flight. Ops submitted meanwhile are
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
	owed    []*Op // releases that are tried later; see resend.go
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
