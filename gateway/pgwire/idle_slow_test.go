//go:build unix

package pgwire_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

const slowLimit = 6 * time.Second // a busy machine may pause a test for a while

// slowRelay ends clients that make PostgreSQL wait.
func slowRelay(t *testing.T, log io.Writer, script func(net.Conn)) *relay {
	t.Helper()
	return start(t, "tcp", upstream(t, script), "shop", func(c *pgwire.Config) {
		c.SlowClientTimeout, c.Logger = slowLimit, slog.New(slog.NewTextHandler(log, nil))
	})
}

func TestAClientThatLetsPostgreSQLWaitIsEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sends  []byte           // by the client, after its login
		script func(c net.Conn) // of PostgreSQL, after the login
	}{
		"it takes nothing": {nil, func(conn net.Conn) {
			row := encode(&pgproto3.DataRow{Values: [][]byte{make([]byte, 1<<20)}})
			for {
				if _, err := conn.Write(row); err != nil {
					return
				}
			}
		}},
		"it stops inside of a message": {[]byte{'Q', 0, 0, 1, 0, 'S'}, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }},
	} {
		var log buffer
		over := make(chan struct{})
		r := slowRelay(t, &log, func(conn net.Conn) {
			defer close(over)
			readStartup(conn)
			_, _ = conn.Write(encode(authOK, ready))
			c.script(conn)
		})
		conn := r.dial()
		send(t, conn, startup)
		if _, err := io.ReadFull(conn, make([]byte, len(encode(authOK, ready)))); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(c.sends); err != nil {
			t.Fatal(err)
		}
		select {
		case <-over:
		case <-time.After(40 * time.Second):
			t.Fatalf("%s: PostgreSQL still waits", name)
		}
		testenv.Eventually(t, name+": the log says so", func() bool { return strings.Contains(log.String(), "slow-client timeout") })
		testenv.Eventually(t, name+": the session is over", func() bool { return r.srv.Stats().Active == 0 })
		_ = conn.Close()
		r.stop()
	}
}

func TestAClientThatWaitsForPostgreSQLIsNotSlow(t *testing.T) {
	t.Parallel()
	var log buffer
	patience := time.NewTimer(2 * slowLimit)
	defer patience.Stop()
	r := slowRelay(t, &log, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		<-patience.C // reads nothing, so the client's message stays unfinished without its fault
		_, _ = io.ReadFull(conn, make([]byte, 64<<20))
		_, _ = conn.Write(encode(&pgproto3.CommandComplete{CommandTag: []byte("DONE")}))
		_, _ = io.Copy(io.Discard, conn)
	})
	conn := r.dial()
	send(t, conn, startup)
	welcome := len(encode(authOK, ready))
	if _, err := io.ReadFull(conn, make([]byte, welcome)); err != nil {
		t.Fatal(err)
	}
	message, _ := (&pgproto3.Query{String: strings.Repeat("x", 64<<20)}).Encode(nil)
	if _, err := conn.Write(message); err != nil {
		t.Fatal(err)
	}
	m, err := pgproto3.NewFrontend(conn, conn).Receive()
	if _, ok := m.(*pgproto3.CommandComplete); !ok {
		t.Errorf("%T, %v; want the answer\n%s", m, err, &log)
	}
}
