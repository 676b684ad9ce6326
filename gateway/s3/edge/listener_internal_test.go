package edge

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// short is a listener that lacks file descriptors for a while.
type short struct {
	net.Listener

	failures int
}

func (s *short) Accept() (net.Conn, error) {
	if s.failures > 0 {
		s.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return s.Listener.Accept()
}

func TestTheServerOutlivesAWantOfFileDescriptors(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Listener{Listener: &short{ln, 3}, Limit: 1, Conns: &Connections{}, Log: slog.New(slog.DiscardHandler)}
	go func() {
		if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			_ = c.Close()
		}
	}()
	c, err := p.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = ln.Close()
	if _, err := p.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
}

// halves is an end of a pipe that can stop writing alone, as one of TCP can.
type halves struct{ net.Conn }

func (halves) CloseWrite() error { return nil }

// piped returns a server's connection in a bubble, and its client.
func piped(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	return &Conn{Conn: halves{server}, stall: time.Minute, linger: Lingering, conns: &Connections{}}, client
}

// The rest of a refused body is heard for two seconds, so that the client reads the answer, and no longer.
func TestTheRestOfARefusedBodyIsHeardForTwoSeconds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unread bool
		pieces int64 // that the client sends, one in 150 ms
		took   time.Duration
	}{
		"it never ends": {true, 1 << 20, 2 * time.Second},
		"it ends":       {true, 10, 1500 * time.Millisecond},
		"nothing comes": {true, 0, 0},
		"it was read":   {false, 1 << 20, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, client := piped(t)
			conn.BodyPending.Store(c.unread)
			var sent atomic.Int64
			var sending sync.WaitGroup
			sending.Go(func() {
				defer func() { _ = client.Close() }()
				for range c.pieces {
					n, err := client.Write(make([]byte, 1000))
					if sent.Add(int64(n)); err != nil {
						return
					}
					time.Sleep(150 * time.Millisecond)
				}
			})
			began := time.Now()
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took != c.took || conn.conns.In.Load() != sent.Load() {
				t.Errorf("%s: heard for %v, %d of %d bytes; want %v", name, took, conn.conns.In.Load(), sent.Load(), c.took)
			}
			sending.Wait()
		})
	}
}

// A connection may be as slow as it likes, but not stall.
func TestAConnectionEndsWhenItStalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, client := piped(t)
		defer func() { _ = conn.Close() }()
		const bytes = 60
		go func() {
			for range bytes {
				time.Sleep(time.Minute - 1)
				_, _ = client.Write([]byte("x"))
			}
		}()
		began := time.Now()
		n, err := io.Copy(io.Discard, conn)
		if took := time.Since(began); n != bytes || !errors.Is(err, os.ErrDeadlineExceeded) || took != bytes*(time.Minute-1)+time.Minute {
			t.Errorf("%d bytes, %v, after %v", n, err, took)
		}
		began = time.Now()
		if _, err := conn.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("to a client that reads nothing: %v, after %v", err, time.Since(began))
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil { // of the server itself
			t.Fatal(err)
		}
		began = time.Now()
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("behind the server's own deadline: %v, after %v", err, time.Since(began))
		}
	})
}
