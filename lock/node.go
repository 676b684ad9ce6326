package lock

import (
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
	kind   opKind
	key    string // L
	field  string // of the counter in H
	owner  string
	holder string
	ttl    int64 // ms
	n      int64 // acquire: floor; confirm: token

	expires time.Time // not sent from then on
	state   atomic.Uint32
	node    int
	reply   chan<- reply // has room for the reply; nil where nobody waits
}

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
	kind   opKind
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

// node is the client side of one Redis node: one connection and one goroutine
// that sends everything in the order in which it was submitted.
type node struct {
	name   string
	index  int
	keys   keys
	client *redis.Client
	onLost func(*node) // called when the node turns out not to be admitted

	mu     sync.Mutex
	queue  []*op
	closed bool
	wake   chan struct{}
	done   chan struct{}

	// Of the goroutine only.
	conn  *redis.Conn
	bound *bound // nil: the incarnation must be learnt first
	spare []*op

	segments [][]*op
	replies  []reply
}

func newNode(cfg Node, index int, k keys, nodeTimeout time.Duration, onLost func(*node)) *node {
	network := "tcp"
	if strings.HasPrefix(cfg.Addr, "/") {
		network = "unix"
	}
	stall := max(stallTimeout, 4*nodeTimeout)
	n := &node{
		name:   cfg.Name,
		index:  index,
		keys:   k,
		onLost: onLost,
		wake:   make(chan struct{}, 1),
		done:   make(chan struct{}),
		client: redis.NewClient(&redis.Options{
			Network:   network,
			Addr:      cfg.Addr,
			Username:  cfg.Username,
			Password:  cfg.Password,
			DB:        cfg.DB,
			TLSConfig: cfg.TLS,
			Protocol:  2,
			// A retried acquire would be a repeated message: never by itself.
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

// submit queues an op. It never blocks; the reply comes on the op's channel.
func (n *node) submit(o *op) {
	n.mu.Lock()
	var err error
	switch {
	case n.closed:
		err = ErrClosed
	case len(n.queue) >= maxQueued:
		err = ErrNodeTimeout
	default:
		n.queue = append(n.queue, o)
	}
	n.mu.Unlock()
	if err != nil {
		o.state.Store(opAbandoned)
		n.deliver(o, reply{err: err})
		return
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// close lets the goroutine send what is queued, and waits for it.
func (n *node) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
	<-n.done
	_ = n.client.Close()
}

func (n *node) run() {
	defer close(n.done)
	defer n.hangUp()
	crowd := false
	for range n.wake {
		for {
			if crowd {
				// Callers that the last batch woke are about to submit again:
				// let them, so that this batch is a full one too.
				runtime.Gosched()
			}
			n.mu.Lock()
			batch := n.queue
			n.queue = n.spare[:0]
			closed := n.closed
			n.mu.Unlock()
			if len(batch) == 0 {
				n.spare, crowd = batch, false
				if closed {
					return
				}
				break
			}
			crowd = len(batch) > 1
			n.exec(n.take(batch))
			clear(batch)
			n.spare = batch
		}
	}
}

// take marks the ops that are still wanted as sent and returns them.
func (n *node) take(batch []*op) []*op {
	now := time.Now()
	live := batch[:0]
	for _, o := range batch {
		if now.After(o.expires) && o.abandon() {
			n.deliver(o, reply{err: ErrNodeTimeout})
			continue
		}
		if o.state.CompareAndSwap(opQueued, opSent) {
			live = append(live, o)
		}
	}
	return live
}

// exec sends ops in order and delivers their replies.
func (n *node) exec(ops []*op) {
	if len(ops) == 0 {
		return
	}
	ctx := context.Background() // the connection's own time-outs bound it
	if n.conn == nil {
		n.conn = n.client.Conn()
	}
	if n.bound == nil {
		if err := n.learn(ctx); err != nil {
			n.hangUpOn(err)
			// Nothing was sent.
			n.deliverAll(ops, reply{err: err})
			return
		}
	}
	n.segments = segments(n.segments[:0], ops)
	cmds := make([]*redis.Cmd, len(n.segments))
	for i, seg := range n.segments {
		cmds[i] = redis.NewCmd(ctx, n.bound.args(n.keys, seg)...)
	}
	var err error
	if len(cmds) == 1 {
		err = n.conn.Process(ctx, cmds[0])
	} else {
		pipe := n.conn.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd) // queued only
		}
		_, err = pipe.Exec(ctx)
	}
	n.hangUpOn(err)
	lost := false
	for i, seg := range n.segments {
		lost = n.answer(seg, cmds[i]) || lost
	}
	clear(n.segments)
	if lost {
		n.bound = nil // it may have been admitted again meanwhile: look before the next call
		n.onLost(n)
	}
}

// answer delivers the replies to a segment, and reports whether the node turned
// out not to be admitted.
func (n *node) answer(seg []*op, cmd *redis.Cmd) (lost bool) {
	if len(seg) == 1 {
		r := parseReply(cmd)
		n.deliver(seg[0], r)
		return errors.Is(r.err, ErrQuarantined)
	}
	n.replies = parseBatch(n.replies[:0], seg, cmd)
	for i, o := range seg {
		lost = lost || errors.Is(n.replies[i].err, ErrQuarantined)
		n.deliver(o, n.replies[i])
	}
	return lost
}

// learn reads the node's incarnation and so the names of its scripts.
func (n *node) learn(ctx context.Context) error {
	nonce, err := n.conn.HGet(ctx, n.keys.h, "@incarnation").Result()
	switch {
	case errors.Is(err, redis.Nil):
		n.onLost(n)
		return ErrQuarantined
	case err != nil:
		return serverError(err)
	}
	n.bound = bindScripts(nonce)
	return nil
}

// hangUpOn drops the connection when err is one of the connection, not of the
// server: its next bytes could be the answer to an earlier question.
func (n *node) hangUpOn(err error) {
	if err == nil || errors.Is(err, ErrQuarantined) {
		return
	}
	var fromServer redis.Error
	if errors.As(err, &fromServer) {
		return
	}
	n.hangUp()
	n.bound = nil
}

func (n *node) hangUp() {
	if n.conn != nil {
		_ = n.conn.Close()
		n.conn = nil
	}
}

func (n *node) deliverAll(ops []*op, r reply) {
	for _, o := range ops {
		n.deliver(o, r)
	}
}

func (n *node) deliver(o *op, r reply) {
	if o.reply == nil {
		return
	}
	r.node, r.kind = n.index, o.kind
	o.reply <- r
}

// serverError gives a known meaning to an error of Redis or of its connection.
func serverError(err error) error {
	text := err.Error()
	var netErr net.Error
	switch {
	case strings.HasPrefix(text, "NOSCRIPT"):
		// The bound scripts are gone: the node lost its run.
		return ErrQuarantined
	case strings.HasPrefix(text, "CROSSSLOT"), strings.HasPrefix(text, "MOVED"), strings.HasPrefix(text, "CLUSTERDOWN"):
		return ErrCluster
	case errors.As(err, &netErr) && netErr.Timeout():
		return errors.Join(ErrNodeTimeout, err)
	}
	return err
}
