//go:build unix

package pgwire_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/pgwire"
)

// patient grants a lease after its client has given up, and after PostgreSQL had time to receive a statement that the
// client sent ahead.
type patient struct {
	leasing.Source

	asked chan struct{}
	heard <-chan string
	err   error
}

func (p *patient) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	close(p.asked)
	<-ctx.Done()
	select {
	case <-p.heard:
	case <-time.After(200 * time.Millisecond): // probably nothing comes
	}
	return leaseOf(r), p.err
}

func (p *patient) Extend(_ context.Context, _ leasing.Ref, ttl time.Duration) (time.Duration, error) {
	return ttl, nil
}

func (p *patient) Release(context.Context, leasing.Ref) error { return nil }

// A stop wakes the goroutine that waits for the session to open. A statement that was sent ahead must not pass, because
// nothing has admitted the session.
func TestAStopLetsNoStatementPassThatWasSentAhead(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"no lease": context.Canceled, "a lease that comes too late": nil} {
		heard, all := make(chan string, 1), make(chan string, 1)
		leases := &patient{asked: make(chan struct{}), heard: heard, err: err}
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(encode(authOK, ready))
			b := make([]byte, 100)
			n, _ := conn.Read(b)
			heard <- string(b[:n])
			rest, _ := io.ReadAll(conn)
			all <- string(b[:n]) + string(rest)
		}), "shop", func(c *pgwire.Config) {
			c.Leases, c.LeaseRules = leases, []pgwire.LeaseRule{{User: "*", Resource: "*"}}
		})
		conn := r.dial()
		send(t, conn, &pgproto3.StartupMessage{
			ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "ada", "database": "shop", "fence.lease": "orders/1;fresh"},
		}, &pgproto3.Query{String: "INSERT INTO notes VALUES (1)"})
		<-leases.asked
		r.ask()
		if code, text := farewell(t, conn); code != "57P01" || strings.Contains(text, "may or may not") {
			t.Errorf("%s: %s %s; want 57P01, and nothing was done", name, code, text)
		}
		if got := <-all; strings.Contains(got, "INSERT") {
			t.Errorf("%s: PostgreSQL got %q of a session that never opened", name, got)
		}
		r.stop()
	}
}
