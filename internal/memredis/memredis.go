// Package memredis runs Redis nodes in the memory of a test, behind connections that the test can delay, hold and
// cut. Everything in it waits on channels and timers only, so a test in a bubble of testing/synctest has its nodes
// inside, and their leases expire by the bubble's clock.
//
//	synctest.Test(t, func(t *testing.T) {
//		n := memredis.Start(t)
//		l, err := lock.New(lock.Config{Nodes: []lock.Node{{Name: "a", Addr: "a", Dialer: n.Dial}}})
//		…
//	})
package memredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ErrDown is the error of a connection to a node that is stopped.
var ErrDown = errors.New("connection refused: the node is down")

// Node is one Redis node. It is safe for concurrent use.
type Node struct {
	// Requests and Replies are the two directions of all connections, but those of Client.
	Requests, Replies *Way

	mu    sync.Mutex
	says  Account
	mini  *miniredis.Miniredis // nil: stopped
	kept  *miniredis.Miniredis // the server of a node that is stopped
	conns []*end
	made  int
}

// Account is what a node says about itself in INFO.
type Account struct {
	Refused     bool // an ACL refuses it
	Role        string
	ReplID      string // 40 hexadecimal digits
	OtherReplID string // of the history before: zeros for none
	Limit       string // maxmemory
	Policy      string // maxmemory-policy
	Evicted     int
}

// primary says that a node lost nothing, and will not.
var primary = Account{
	Role: "master", ReplID: strings.Repeat("a", 40), OtherReplID: strings.Repeat("0", 40), Limit: "0", Policy: "noeviction",
}

// Says changes what the node says about itself. It does nothing else.
func (n *Node) Says(change func(a *Account)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.says)
}

// info answers INFO.
func (n *Node) info(c *server.Peer, cmd string, _ ...string) bool {
	if cmd != "INFO" {
		return false
	}
	n.mu.Lock()
	a := n.says
	n.mu.Unlock()
	if a.Refused {
		c.WriteError("NOPERM this user has no permissions to run the 'info' command")
		return true
	}
	c.WriteBulk(fmt.Sprintf("role:%s\r\nmaster_replid:%s\r\nmaster_replid2:%s\r\nmaxmemory:%s\r\nmaxmemory_policy:%s\r\nevicted_keys:%d\r\n",
		a.Role, a.ReplID, a.OtherReplID, a.Limit, a.Policy, a.Evicted))
	return true
}

// Start starts a node that is closed at the test's end.
func Start(t testing.TB) *Node {
	t.Helper()
	n := &Node{Requests: &Way{}, Replies: &Way{}, says: primary}
	if err := n.start(empty()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

// empty is a server without data, whose leases expire by the clock.
func empty() *miniredis.Miniredis {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	return m
}

// start lets the node answer. Its scripts are gone, like those of a server that starts.
func (n *Node) start(m *miniredis.Miniredis) error {
	conn, err := m.Dial() // starts the server
	if err != nil {
		return err
	}
	c := clientOf(func(context.Context, string, string) (net.Conn, error) { return conn, nil })
	defer func() { _ = c.Close() }()
	m.Server().SetPreHook(n.info)
	if err := c.ScriptFlush(context.Background()).Err(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mini = m
	return nil
}

// Stop cuts all connections and refuses new ones, until Restart or Lose.
func (n *Node) Stop() { n.stop() }

func (n *Node) stop() *miniredis.Miniredis {
	n.mu.Lock()
	m, conns := n.mini, n.conns
	if m != nil {
		n.kept = m
	}
	n.mini, n.conns = nil, nil
	kept := n.kept
	n.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	if m != nil {
		m.Close()
	}
	return kept
}

// Restart starts the node, and stops it first if it runs. It has its data as before, but not its scripts.
func (n *Node) Restart(t testing.TB) {
	t.Helper()
	if err := n.start(n.stop()); err != nil {
		t.Fatal(err)
	}
}

// Lose starts the node without its data, and stops it first if it runs.
func (n *Node) Lose(t testing.TB) {
	t.Helper()
	n.stop()
	if err := n.start(empty()); err != nil {
		t.Fatal(err)
	}
}

// Mini is the node's server: nil while it is stopped.
func (n *Node) Mini() *miniredis.Miniredis {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mini
}

// Kept is the server of a node that is stopped.
func (n *Node) Kept() *miniredis.Miniredis {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kept
}

// Freeze stops the node's process: it takes connections and requests, and answers nothing until Thaw.
func (n *Node) Freeze() { n.Requests.Close() }

// Thaw lets a frozen node go on. Its leases expired while it was frozen. As a server does, it processes what was sent on
// connections that have ended before it answers on new ones.
func (n *Node) Thaw() {
	n.mu.Lock()
	conns := n.conns
	n.mu.Unlock()
	for _, c := range conns {
		c.out.finish()
	}
	n.Requests.Open()
}

// Connections is how many connections were made so far.
func (n *Node) Connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.made
}

// Dial connects to the node. It is a lock.Node's Dialer.
func (n *Node) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return n.dial(ctx, n.Requests, n.Replies, nil, nil)
}

// DialCarried connects to the node. Each message is handed to request or reply, which must not block, and arrives
// when it is delivered. Requests and Replies do not concern the connection.
func (n *Node) DialCarried(ctx context.Context, request, reply func(*Message)) (net.Conn, error) {
	direct := &Way{}
	return n.dial(ctx, direct, direct, request, reply)
}

func (n *Node) dial(ctx context.Context, requests, replies *Way, request, reply func(*Message)) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mini == nil {
		return nil, ErrDown
	}
	client, server := pipe(requests, replies)
	client.out.carry, client.in.carry = request, reply
	n.mini.Server().ServeConn(server)
	n.conns = append(n.conns, client)
	n.made++
	return client, nil
}

// Client is a client whose connections the test's delays, holds and losses leave alone.
func (n *Node) Client(t testing.TB) *redis.Client {
	t.Helper()
	direct := &Way{}
	c := clientOf(func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dial(ctx, direct, direct, nil, nil) })
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func clientOf(dial func(context.Context, string, string) (net.Conn, error)) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: "memory", Dialer: dial, Protocol: 2, MaxRetries: -1, DisableIdentity: true, PoolSize: 2,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, // it would look Addr up
	})
}

// Way is one direction of a node's connections. Its zero value carries at once. A test may wait for what it holds.
type Way struct {
	mu        sync.Mutex
	opened    chan struct{} // nil: open
	heldCount int           // messages that have ever waited at it
	lose      int           // this many further messages are lost, with their connections
	lost      int
	delay     func() time.Duration
}

// Close holds every message until Open.
func (w *Way) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.opened == nil {
		w.opened = make(chan struct{})
	}
}

// Open lets held messages pass.
func (w *Way) Open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.opened != nil {
		close(w.opened)
		w.opened = nil
	}
}

// HeldCount is how many messages have ever been held.
func (w *Way) HeldCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heldCount
}

// Lose loses the next messages, and cuts the connection of each.
func (w *Way) Lose(messages int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose = messages
}

// Lost is how many messages were lost.
func (w *Way) Lost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Delay has each message take as long as f says, later ones of a connection never less than earlier ones. f runs at
// the message's start; nil: no time.
func (w *Way) Delay(f func() time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = f
}

// enter reports when a message that is sent now arrives, and whether it does.
func (w *Way) enter() (at time.Time, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at = time.Now()
	switch {
	case w.lose > 0:
		w.lose--
		w.lost++
		return at, true
	case w.delay != nil:
		at = at.Add(w.delay())
	}
	if w.opened != nil {
		w.heldCount++
	}
	return at, false
}

// gate is what a message waits for; nil: nothing.
func (w *Way) gate() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}
