//go:build unix

package gateway_test

import (
	"context"
	"errors"
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
	cfg.PGSocket = socket
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
	l := c.acquire("orders/1001", "1m")
	login := func(host string, port uint16) {
		t.Helper()
		parsed, err := pgx.ParseConfig(pg.WriterURL)
		if err != nil {
			t.Fatal(err)
		}
		parsed.Host, parsed.Port, parsed.TLSConfig, parsed.Fallbacks = host, port, nil, nil
		parsed.RuntimeParams["options"] = "-c fence.resource=orders/1001 -c fence.token=" + l.grant
		conn, err := pgx.ConnectConfig(t.Context(), parsed)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		if _, err := conn.Exec(t.Context(), updateOrder, host); err != nil {
			t.Errorf("by %s: %v", host, err)
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

// Connecting to a file or an empty folder is refused as connecting to a socket that a killed process left.
func TestOnlyASocketIsReplacedByTheSocket(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	dir := t.TempDir()
	file, folder, link := filepath.Join(dir, "file"), filepath.Join(dir, "folder"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("kept"), 0o600), os.Mkdir(folder, 0o700), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, folder, link} {
		cfg := config(t, pg)
		cfg.PGSocket = path
		g, err := gateway.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Start(t.Context()); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("%s: %v; want an error that it is no socket", path, err)
		}
		if err := g.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s was removed: %v", path, err)
		}
	}
	if kept, err := os.ReadFile(file); err != nil || string(kept) != "kept" {
		t.Errorf("the file has %q, %v", kept, err)
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
