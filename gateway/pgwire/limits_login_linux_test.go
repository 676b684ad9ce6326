package pgwire_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// dialFrom connects from a local address.
func (r *relay) dialFrom(host string) net.Conn {
	r.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	conn, err := dialer.DialContext(r.t.Context(), "tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

func TestSilentStrangersOfOneAddressDoNotShutThePort(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", letsIn(t), "shop", func(c *pgwire.Config) {
		c.MaxConnections, c.FirstByteTimeout = 100, time.Hour
		c.LoginTimeout = time.Hour
	})
	login := func(conn net.Conn) (refused string) {
		t.Helper()
		send(t, conn, startup)
		b := make([]byte, len(encode(authOK, ready)))
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != string(encode(authOK, ready)) {
			return string(b)
		}
		return ""
	}
	first := r.dial() // logs in before they come
	if why := login(first); why != "" {
		t.Fatalf("refused: %q", why)
	}
	for range 1000 {
		r.dial()
	}
	testenv.Eventually(t, "all of them are accepted, and most are closed", func() bool {
		return r.srv.Stats().Connections == 1001
	})
	if why := login(r.dialFrom("127.0.0.2")); why != "" {
		t.Errorf("a client of another address is refused: %q", why)
	}
}

func TestWhoHasLoggedInCountsNotAmongTheStrangersOfItsAddress(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", letsIn(t), "shop", func(c *pgwire.Config) { c.MaxAddressLogins = 1 })
	for i := range 4 {
		conn := r.dial()
		send(t, conn, startup)
		b := make([]byte, len(encode(authOK, ready)))
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != string(encode(authOK, ready)) {
			t.Fatalf("login %d: %q, %v", i, b, err)
		}
	}
}

func TestTheFirstByteIsWaitedForForAShorterTime(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", letsIn(t), "shop", func(c *pgwire.Config) {
		c.FirstByteTimeout, c.LoginTimeout = 5*time.Second, time.Hour
	})
	begun := r.dial()
	if _, err := begun.Write([]byte{0}); err != nil { // now it has the time of a login
		t.Fatal(err)
	}
	silent := r.dial()
	if b, err := io.ReadAll(silent); err != nil || len(b) != 0 {
		t.Errorf("silence: %q, %v; want the end", b, err)
	}
	packet, _ := startup.Encode(nil)
	if _, err := begun.Write(packet[1:]); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(encode(authOK, ready)))
	if _, err := io.ReadFull(begun, b); err != nil {
		t.Errorf("a client that had begun: %q, %v", b, err)
	}
}
