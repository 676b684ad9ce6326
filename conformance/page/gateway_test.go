package page_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// binary builds fencegate, once. Its folder is removed when this process ends.
var binary = sync.OnceValues(func() (path string, err error) {
	dir, err := os.MkdirTemp("", "fencegate-page-")
	if err != nil {
		return "", err
	}
	if err := child.RemoveAtDeath(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	path = filepath.Join(dir, "fencegate")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "./cmd/fencegate")
	build.Dir, build.Stderr = "../..", os.Stderr
	return path, build.Run()
})

func fencegate(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// gateway is a process of fencegate serve.
type gateway struct {
	t    *testing.T
	base string // of the API and the page
	pg   string // URL of the PostgreSQL port
	http *http.Client

	process *child.Process
}

// serve starts a gateway before a database, with further flags.
func serve(t *testing.T, postgres string, flags ...string) *gateway {
	t.Helper()
	dir := t.TempDir()
	master := filepath.Join(dir, "master")
	if err := os.WriteFile(master, []byte("page:"+strings.Repeat("4f", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	api, pg := freeAddr(t), freeAddr(t)
	p, err := child.Start(child.Spec{
		Path: fencegate(t), Log: logs, Env: append(os.Environ(), "FENCEGATE_POSTGRES_URL="+postgres),
		Args: append([]string{"serve", "--api-listen", api, "--pg-listen", pg, "--master-key-file", master, "--max-ttl", "1h", "--drain-timeout", "1s"}, flags...),
	})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		p.Stop(10 * time.Second)
		_ = logs.Close()
		if t.Failed() {
			said, _ := os.ReadFile(logs.Name())
			t.Logf("the gateway said:\n%s", said)
		}
	})
	g := &gateway{t: t, base: "http://" + api, pg: pg, http: &http.Client{Transport: transport}, process: p}
	g.awaitReady(p.Done())
	return g
}

func freeAddr(t *testing.T) string {
	t.Helper()
	port, err := child.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func (g *gateway) awaitReady(ended <-chan struct{}) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err := g.api("").Ready(ctx); err == nil {
			return
		}
		select {
		case <-ended:
			g.t.Fatal("the gateway ended")
		case <-ctx.Done():
			g.t.Fatal("the gateway is not ready")
		case <-time.After(20 * time.Millisecond):
		}
	}
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
	host, port, _ := net.SplitHostPort(g.pg)
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
