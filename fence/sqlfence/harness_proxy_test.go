package sqlfence_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy relays to PostgreSQL until the next COMMIT after atCommit. Then it cuts that connection, either after the
// server's answer or before the request reaches the server.
type proxy struct {
	armed, arrives atomic.Bool
	requests       atomic.Int64 // the cut is at this request from now on, of any kind; 0: none
}

func (p *proxy) atCommit(arrives bool) {
	p.arrives.Store(arrives)
	p.armed.Store(true)
}

func (p *proxy) listen(t testing.TB, target string) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.relay(client, target) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

func (p *proxy) relay(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	var cut atomic.Bool
	var back sync.WaitGroup
	back.Go(func() {
		defer client.Close()
		b := make([]byte, 4096)
		for {
			n, err := server.Read(b)
			if err != nil || cut.Load() {
				return
			}
			if _, err := client.Write(b[:n]); err != nil {
				return
			}
		}
	})
	defer back.Wait()
	defer server.Close()
	b := make([]byte, 4096)
	for {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		if p.requests.Add(-1) == 0 || bytes.Contains(bytes.ToLower(b[:n]), []byte("commit")) && p.armed.CompareAndSwap(true, false) {
			if !p.arrives.Load() {
				return
			}
			cut.Store(true)
		}
		if _, err := io.Copy(server, bytes.NewReader(b[:n])); err != nil {
			return
		}
	}
}
