package page_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/stack/stacktest"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// gateway is a process of fencegate serve.
type gateway struct {
	*stack.GatewayProcess

	t    *testing.T
	base string // of the API and the page
	http *http.Client
}

// serve starts a gateway before a database.
func (c chromium) serve(t *testing.T, cfg stack.GatewayConfig) *gateway {
	t.Helper()
	cfg.Program, cfg.Flags = c.program, append(cfg.Flags, "--max-ttl", "1h", "--drain-timeout", "1s")
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	g := stacktest.Serve(t, stacktest.New(t), cfg)
	return &gateway{GatewayProcess: g, t: t, base: "http://" + g.API, http: &http.Client{Transport: transport}}
}

// alone starts a gateway whose leases are PostgreSQL's.
func (c chromium) alone(t *testing.T, flags ...string) *gateway {
	t.Helper()
	return c.serve(t, stack.GatewayConfig{URL: testenv.Postgres(t).GatewayURL, Flags: flags})
}

// api is the client with a token.
func (g *gateway) api(token string) *client.Client {
	g.t.Helper()
	c, err := client.New(client.Config{URL: g.base, Token: token, HTTPClient: g.http})
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// hold acquires a resource for a while.
func (g *gateway) hold(token, resource, holder string, ttl time.Duration) client.Lease {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	l, err := g.api(token).Acquire(ctx, client.AcquireRequest{Resource: resource, Holder: holder, TTL: ttl, Wait: 10 * time.Second})
	if err != nil {
		g.t.Fatal(err)
	}
	return l
}

// release releases a lease.
func (g *gateway) release(l client.Lease) {
	g.t.Helper()
	if err := g.api("").Release(g.t.Context(), l.Handle); err != nil {
		g.t.Fatal(err)
	}
}

// guard creates the table orders, whose rows are guarded by a resource each.
func guard(t *testing.T, pg testenv.PG) {
	t.Helper()
	for _, sql := range []string{
		"CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL)",
		"INSERT INTO orders VALUES (1001, 'new')",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO fence_writer",
		"SELECT fence.protect('orders', resource => 'orders/1001')",
	} {
		if _, err := pg.Pool(t).Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// writeStale writes to orders under a superseded lease, through the PostgreSQL port.
func (g *gateway) writeStale(pg testenv.PG, stale client.Lease) {
	g.t.Helper()
	cfg, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil {
		g.t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(g.PG)
	number, _ := strconv.ParseUint(port, 10, 16)
	cfg.Host, cfg.Port, cfg.Fallbacks, cfg.TLSConfig = host, uint16(number), nil, nil
	cfg.RuntimeParams["application_name"] = "invoices"
	conn, err := pgx.ConnectConfig(g.t.Context(), cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(g.t.Context())) }()
	const present = "SELECT set_config('fence.resource', $1, false), set_config('fence.token', $2, false)"
	if _, err := conn.Exec(g.t.Context(), present, stale.Resource, stale.Presented); err != nil {
		g.t.Fatal(err)
	}
	_, err = conn.Exec(g.t.Context(), "UPDATE orders SET status = 'stale' WHERE id = 1001")
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "ZF001" {
		g.t.Fatalf("a stale write: %v", err)
	}
}
