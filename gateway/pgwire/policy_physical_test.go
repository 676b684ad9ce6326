//go:build unix

package pgwire_test

import (
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A grant does not admit physical replication, which a grant-required policy refuses.
func TestPhysicalReplicationNeedsOpenAlsoWithAGrant(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = io.Copy(io.Discard, conn)
	}), "shop", rules(t, "*@replication=grant-required"))
	conn := r.dial()
	send(t, conn, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
		"user": "ada", "replication": "true", "fence.resource": "orders/1", "fence.token": "1." + someSeal,
	}})
	for from := pgproto3.NewFrontend(conn, conn); ; {
		m, err := from.Receive()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			if m.Code != "ZF002" {
				t.Errorf("%+v", m)
			}
			return
		case *pgproto3.ReadyForQuery:
			t.Fatal("the session is open")
		}
	}
}
