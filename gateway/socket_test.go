//go:build unix

package gateway_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestThePostgreSQLPortIsReachedByASocketToo(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	dir, err := os.MkdirTemp("", "fencegate") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, ".s.PGSQL.7432")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(t, pg)
	cfg.PGSocket, cfg.PG.LeaseRules = socket, orders
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "another process serves it") {
		t.Errorf("a socket that is served: %v", err)
	}
	left.SetUnlinkOnClose(false) // as if its process had been killed
	_ = left.Close()
	cfg.BlobDir = t.TempDir()
	c := start(t, cfg)
	login := func(host string, port uint16) {
		t.Helper()
		parsed, err := pgx.ParseConfig(pg.WriterURL)
		if err != nil {
			t.Fatal(err)
		}
		parsed.Host, parsed.Port, parsed.TLSConfig, parsed.Fallbacks = host, port, nil, nil
		parsed.RuntimeParams["options"] = "-c fence.lease=orders/1001;fresh;wait=20s"
		conn, err := pgx.ConnectConfig(t.Context(), parsed)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		if _, err := conn.Exec(t.Context(), updateOrder, host); err != nil {
			t.Errorf("by %s: %v", host, err)
		}
		if holder, locked := c.locked("orders/1001"); !locked || !strings.Contains(holder, parsed.User) {
			t.Errorf("by %s: held by %q, %v", host, holder, locked)
		}
	}
	login(dir, 7432)
	login("127.0.0.1", uint16(netPort(t, c.g.Addrs().PG)))
	if err := c.g.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is still there")
	}
}

func netPort(t *testing.T, addr string) int {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return at.Port
}
