//go:build unix

package pgwire_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

// cancelled starts a relay with two hosts, opens a session at the first, and sends a cancel request for key. A host
// answers a cancel request when its channel is closed.
func cancelled(t *testing.T, key string, answers [2]chan struct{}) (conn net.Conn) {
	t.Helper()
	host := func(answers chan struct{}) string {
		return upstream(t, func(conn net.Conn) {
			if len(readStartup(conn)) == 16 {
				<-answers
				return
			}
			_, _ = conn.Write(encode(authOK, &pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("mine")}, ready))
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	r := start(t, "tcp", host(answers[0]), "shop", func(c *pgwire.Config) {
		c.Fallbacks, c.DialTimeout = []pgwire.Upstream{{Addr: host(answers[1])}}, time.Minute
	})
	session := r.dial()
	send(t, session, startup)
	frontend := pgproto3.NewFrontend(session, session)
	for range 3 {
		if _, err := frontend.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	conn = r.dial()
	send(t, conn, &pgproto3.CancelRequest{ProcessID: 1, SecretKey: []byte(key)})
	return conn
}

func TestACancelRequestDoesNotWaitForAHostThatHangs(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	close(answered)
	for name, key := range map[string]string{"a session of this gateway": "mine", "a session of another": "else"} {
		hung := make(chan struct{})
		conn := cancelled(t, key, [2]chan struct{}{answered, hung})
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if b, err := io.ReadAll(conn); err != nil || len(b) != 0 {
			t.Errorf("%s: the client got %q, %v; want the end", name, b, err)
		}
		close(hung)
	}
}

// A client whose cancel request is still on its way would have its next statement cancelled.
func TestACancelRequestWaitsForTheHostOfItsSession(t *testing.T) {
	t.Parallel()
	slow, answered := make(chan struct{}), make(chan struct{})
	close(answered)
	conn := cancelled(t, "mine", [2]chan struct{}{slow, answered})
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v while its host has not answered", err)
	}
	close(slow)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b, err := io.ReadAll(conn); err != nil || len(b) != 0 {
		t.Errorf("the client got %q, %v; want the end", b, err)
	}
}
