package lock

import (
	"context"
	"errors"
	"net"
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
	for range n.wake {
		for {
			n.mu.Lock()
			batch := n.queue
			n.queue = n.spare[:0]
			closed := n.closed
			n.mu.Unlock()
			if len(batch) == 0 {
				n.spare = batch
				if closed {
					return
				}
				break
			}
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
	cmds := make([]*redis.Cmd, len(ops))
	var err error
	if len(ops) == 1 {
		cmds[0] = redis.NewCmd(ctx, n.args(ops[0])...)
		err = n.conn.Process(ctx, cmds[0])
	} else {
		pipe := n.conn.Pipeline()
		for i, o := range ops {
			cmds[i] = pipe.Do(ctx, n.args(o)...)
		}
		_, err = pipe.Exec(ctx)
	}
	n.hangUpOn(err)
	lost := false
	for i, o := range ops {
		r := parseReply(cmds[i])
		lost = lost || errors.Is(r.err, ErrQuarantined)
		n.deliver(o, r)
	}
	if lost {
		n.bound = nil // it may have been admitted again meanwhile: look before the next call
		n.onLost(n)
	}
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

func (n *node) args(o *op) []any {
	sha := n.bound.sha[o.kind]
	switch o.kind {
	case opAcquire:
		return []any{"EVALSHA", sha, 2, n.keys.h, o.key, o.field, o.owner, o.holder, o.ttl, o.n}
	case opConfirm:
		return []any{"EVALSHA", sha, 2, n.keys.h, o.key, o.field, o.owner, o.n}
	case opExtend:
		return []any{"EVALSHA", sha, 2, n.keys.h, o.key, o.owner, o.ttl}
	default:
		return []any{"EVALSHA", sha, 2, n.keys.h, o.key, o.owner}
	}
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

// parseReply reads a script's flat array.
func parseReply(cmd *redis.Cmd) reply {
	values, err := cmd.Slice()
	if err != nil {
		err = serverError(err)
		return reply{err: err, sent: !errors.Is(err, ErrQuarantined)}
	}
	r := reply{sent: true}
	if len(values) == 0 {
		r.err = errors.New("malformed reply")
		return r
	}
	r.n = integer(values, 0)
	r.pttl = integer(values, 1)
	r.floor = integer(values, 2)
	if len(values) > 3 {
		r.holder, _ = values[3].(string)
	}
	if r.n == codeUnknown {
		return reply{err: ErrQuarantined}
	}
	return r
}

func integer(values []any, i int) int64 {
	if i >= len(values) {
		return 0
	}
	n, _ := values[i].(int64)
	return n
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
