package torture

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Link connects a process to a server. While a way is shut nothing passes on it. What was sent during that time passes
// afterwards, although its sender may have closed the connection. Only one goroutine may shut and open a link.
type Link struct {
	Addr              string
	requests, answers way
	loses             atomic.Bool // connections end instead of passing an answer on: the server has done what was asked
}

// Shut shuts both ways.
func (l *Link) Shut() { l.shut(3) }

// shut shuts ways: 1 the requests', 2 the answers', 3 both.
func (l *Link) shut(ways int) {
	if ways&1 != 0 {
		l.requests.shut()
	}
	if ways&2 != 0 {
		l.answers.shut()
	}
}

// Open lets pass what was sent.
func (l *Link) Open() {
	l.requests.open()
	l.answers.open()
}

// way is one direction of a link.
type way struct{ gate atomic.Pointer[chan struct{}] }

func (w *way) shut() {
	gate := make(chan struct{})
	w.gate.Store(&gate)
}

func (w *way) open() {
	if gate := w.gate.Swap(nil); gate != nil {
		close(*gate)
	}
}

func (w *way) pass(ctx context.Context) bool {
	if gate := w.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// NewLink listens until the test ends.
func NewLink(t testing.TB, server string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{Addr: listener.Addr().String()}
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

func (l *Link) carry(ctx context.Context, client net.Conn, server string) {
	defer client.Close()
	upstream, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return
	}
	defer upstream.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = upstream.Close() })()
	var both sync.WaitGroup
	both.Go(func() { pass(ctx, client, upstream, &l.requests, nil) })
	both.Go(func() { pass(ctx, upstream, client, &l.answers, &l.loses) })
	both.Wait()
}

func pass(ctx context.Context, from, to net.Conn, w *way, loses *atomic.Bool) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !w.pass(ctx) || loses != nil && loses.Load() {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
