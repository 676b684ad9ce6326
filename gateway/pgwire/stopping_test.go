//go:build unix

package pgwire_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// A stop may take long; in the meantime sessions still end for other reasons.
func TestSessionsThatAStopWaitsForEndForTheOtherReasonsToo(t *testing.T) {
	t.Parallel()
	begin := &pgproto3.Query{String: "BEGIN"}
	f := &fences{tokens: map[string]fence.Token{"r": 34}}
	for name, c := range map[string]struct {
		limit func(*pgwire.Config)
		then  func()
		code  string
	}{
		"a newer grant": {
			func(c *pgwire.Config) { c.Fences, c.FencesEvery = f.read, 5*time.Millisecond },
			func() { f.set("r", 35, nil) }, "ZF001",
		},
		"idle in its transaction": {func(c *pgwire.Config) { c.IdleInTransactionTimeout = 5 * time.Second }, func() {}, "25P03"},
	} {
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(encode(authOK, ready))
			_, _ = io.ReadFull(conn, make([]byte, size(begin)))
			_, _ = conn.Write(encode(&pgproto3.ReadyForQuery{TxStatus: 'T'}))
			_, _ = io.Copy(io.Discard, conn)
		}), "shop", c.limit, func(c *pgwire.Config) { c.DrainTimeout = 20 * time.Second })
		conn := r.dial()
		send(t, conn, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
			"user": "ada", "database": "shop", "fence.resource": "r", "fence.token": "34." + someSeal,
		}}, begin)
		testenv.Eventually(t, "it is in a transaction", func() bool {
			all := r.srv.Sessions()
			return len(all) == 1 && all[0].State == "idle in transaction"
		})
		r.ask()
		refusing(t, r)
		c.then()
		if code, text := farewell(t, conn); code != c.code {
			t.Errorf("%s: %s %s; want %s", name, code, text, c.code)
		}
		r.stop()
	}
}
