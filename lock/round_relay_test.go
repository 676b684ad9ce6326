package lock_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// relay stands before a node. It drops replies: the request was executed, but the client gets no answer. It delays
// messages, and forwards them even if the sender has disconnected since.
type relay struct {
	addr     string
	accepted atomic.Int64
	losing   atomic.Bool
	lose     atomic.Int64 // how many further replies are dropped
	lost     atomic.Int64
	requests gate
	replies  gate
}

// gate delays messages while it is shut. Only one goroutine may shut and open it.
type gate struct {
	shut    atomic.Pointer[chan struct{}]
	waiting atomic.Int64 // number of messages that have ever waited at a shut gate
}

func (g *gate) close() {
	held := make(chan struct{})
	g.shut.Store(&held)
}

func (g *gate) open() {
	if held := g.shut.Swap(nil); held != nil {
		close(*held)
	}
}

func (g *gate) pass(ctx context.Context) bool {
	if held := g.shut.Load(); held != nil {
		g.waiting.Add(1)
		select {
		case <-*held:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	var conns sync.WaitGroup
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := &relay{addr: listener.Addr().String()}
	ctx, stop := context.WithCancel(context.Background())
	conns.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			r.accepted.Add(1)
			conns.Go(func() { r.carry(ctx, client, server) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
		conns.Wait()
	})
	return r
}

func (r *relay) carry(ctx context.Context, client net.Conn, server string) {
	defer client.Close()
	node, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer node.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = node.Close() })()
	var both sync.WaitGroup
	both.Go(func() { r.pass(ctx, client, node, &r.requests, false) })
	both.Go(func() { r.pass(ctx, node, client, &r.replies, true) })
	both.Wait()
}

func (r *relay) pass(ctx context.Context, from, to net.Conn, g *gate, lossy bool) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !g.pass(ctx) {
			return
		}
		if lossy && (r.losing.Load() || r.lose.Load() > 0 && r.lose.Add(-1) >= 0) {
			r.lost.Add(1)
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
