package torture

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// link connects a process to a server. While a way is shut nothing passes on it. What was sent during that time passes
// afterwards, although its sender may have closed the connection.
type link struct {
	server, addr      string
	requests, answers way
	losing            atomic.Int32 // above 0: connections end instead of passing an answer on; the server has done what was asked
}

// ways of a link are the requests', the answers' or both.
func (l *link) ways(which int) []*way {
	return [][]*way{{&l.requests}, {&l.answers}, {&l.requests, &l.answers}}[which]
}

// way is one direction of a link. It is shut until everyone who shut it has opened it.
type way struct {
	mu    sync.Mutex
	shuts int
	gate  chan struct{} // nil: it is open
}

func (w *way) shut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shuts++; w.shuts == 1 {
		w.gate = make(chan struct{})
	}
}

// open lets pass what was sent.
func (w *way) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shuts--; w.shuts == 0 {
		close(w.gate)
		w.gate = nil
	}
}

// pass waits until the way is open.
func (w *way) pass(ctx context.Context) bool {
	w.mu.Lock()
	gate := w.gate
	w.mu.Unlock()
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-ctx.Done():
		return false
	}
}

// newLink listens until the test ends.
func newLink(t testing.TB, server string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{server: server, addr: listener.Addr().String()}
	ctx, stop := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { l.carry(ctx, client) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
		conns.Wait()
	})
	return l
}

func (l *link) carry(ctx context.Context, client net.Conn) {
	defer client.Close()
	upstream, err := new(net.Dialer).DialContext(ctx, "tcp", l.server)
	if err != nil {
		return
	}
	defer upstream.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = upstream.Close() })()
	var both sync.WaitGroup
	both.Go(func() { pass(ctx, client, upstream, &l.requests, nil) })
	both.Go(func() { pass(ctx, upstream, client, &l.answers, &l.losing) })
	both.Wait()
}

func pass(ctx context.Context, from, to net.Conn, w *way, losing *atomic.Int32) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !w.pass(ctx) || losing != nil && losing.Load() > 0 {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
