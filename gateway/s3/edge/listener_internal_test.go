package edge

import (
	"log/slog"
	"net"
	"syscall"
	"testing"
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
