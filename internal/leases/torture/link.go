package torture

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// link connects a process to a server. While a direction is shut nothing passes. What was sent during that time
// passes afterwards, although its sender may have closed the connection.
type link struct {
	addr              string
	requests, answers gate
}

// ways returns the gates that a cut shuts: 1 the requests', 2 the answers', 3 both.
func (l *link) ways(which int) (gates []*gate) {
	if which&1 != 0 {
		gates = append(gates, &l.requests)
	}
	if which&2 != 0 {
		gates = append(gates, &l.answers)
	}
	return gates
}

// gate holds back data while it is shut. Only one goroutine may shut and open it.
type gate struct{ shut atomic.Pointer[chan struct{}] }

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
		select {
		case <-*held:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// newLink listens until the test ends.
func newLink(t testing.TB, server string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{addr: listener.Addr().String()}
	ctx, stop := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { l.carry(ctx, client, server) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
		conns.Wait()
	})
	return l
}

func (l *link) carry(ctx context.Context, client net.Conn, server string) {
	defer client.Close()
	upstream, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return
	}
	defer upstream.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = upstream.Close() })()
	var both sync.WaitGroup
	both.Go(func() { pass(ctx, client, upstream, &l.requests) })
	both.Go(func() { pass(ctx, upstream, client, &l.answers) })
	both.Wait()
}

func pass(ctx context.Context, from, to net.Conn, g *gate) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !g.pass(ctx) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
