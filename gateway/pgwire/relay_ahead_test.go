//go:build unix

package pgwire_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A stop wakes the goroutine that waits for the session to open. A statement that was sent ahead must not pass, because
// nothing has admitted the session.
func TestAStopLetsNoStatementPassThatWasSentAhead(t *testing.T) {
	t.Parallel()
	checked, all := make(chan struct{}), make(chan string, 1)
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = conn.Read(make([]byte, 1)) // of the gateway's check, which gets no answer
		close(checked)
		rest, _ := io.ReadAll(conn)
		all <- string(rest)
	}), "shop", rules(t, "*=grant-required"))
	conn := r.dial()
	send(t, conn, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
		"user": "ada", "database": "shop", "fence.resource": "orders/1", "fence.token": "1." + someSeal,
	}}, &pgproto3.Query{String: "INSERT INTO notes VALUES (1)"})
	<-checked
	r.ask()
	if code, text := finalError(t, conn); code != "57P01" || strings.Contains(text, "may or may not") {
		t.Errorf("%s %s; want 57P01, and nothing was done", code, text)
	}
	if got := <-all; strings.Contains(got, "INSERT") {
		t.Errorf("PostgreSQL got %q of a session that never opened", got)
	}
}
