//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// address forwards to the current primary, as a virtual IP does.
type address struct {
	ln net.Listener

	mu     sync.Mutex
	target string
	open   []net.Conn
}

func newAddress(t *testing.T, target string) *address {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &address{ln: ln, target: target}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { a.forward(client) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); a.moveTo(""); conns.Wait() })
	return a
}

func (a *address) forward(client net.Conn) {
	defer func() { _ = client.Close() }()
	a.mu.Lock()
	target := a.target
	a.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	a.mu.Lock()
	moved := a.target != target
	if !moved {
		a.open = append(a.open, client, server)
	}
	a.mu.Unlock()
	if moved { // nothing else would close this one
		return
	}
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	_, _ = io.Copy(client, server)
}

// moveTo forwards new connections to target and closes the open ones.
func (a *address) moveTo(target string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.target = target
	for _, c := range a.open {
		_ = c.Close()
	}
	a.open = nil
}

// cluster is a PostgreSQL of its own with a guarded table, behind an address that can move.
type cluster struct {
	*pgserver.Server
	at *address
}

var clusterSettings = map[string]string{"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on", "shared_buffers": "16MB", "max_wal_size": "64MB"}

// run starts a server on the folder, which keeps its data.
func run(t *testing.T, dir string) *pgserver.Server {
	t.Helper()
	return testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Fast: true, Settings: clusterSettings})
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: run(t, testenv.ServerDir(t))}
	c.at = newAddress(t, c.Addr())
	if err := migrate.Up(t.Context(), c.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`CREATE ROLE gate LOGIN PASSWORD 'gate' IN ROLE fence_gateway`,
		`CREATE ROLE writer LOGIN PASSWORD 'writer' IN ROLE fence_writer`,
		`CREATE TABLE orders (id bigint PRIMARY KEY, status text)`,
		`INSERT INTO orders VALUES (1001, 'new')`,
		`GRANT ALL ON orders TO PUBLIC`,
		`SELECT fence.protect('orders', under => 'orders/')`,
	} {
		execOn(t, c.Server, sql)
	}
	return c
}

// execOn runs a statement as the superuser and returns its only value as text.
func execOn(t *testing.T, s *pgserver.Server, sql string, args ...any) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	rows, _ := conn.Query(t.Context(), sql, args...)
	values, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		all, err := row.Values()
		return fmt.Sprint(all...), err
	})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(values, "\n")
}

// untilSays polls a value of a server until it is want.
func untilSays(t *testing.T, s *pgserver.Server, sql, want string) {
	t.Helper()
	testenv.Eventually(t, sql+" is "+want, func() error {
		if is := execOn(t, s, sql); is != want {
			return errors.New(is)
		}
		return nil
	})
}

// as returns the address of the moving server for a login.
func (c *cluster) as(login string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(login, login), Host: c.at.ln.Addr().String(), Path: "/postgres", RawQuery: "sslmode=disable"}
	return u.String()
}

// write presents a grant to PostgreSQL itself and returns the SQLSTATE of the refusal, or "".
func (c *cluster) write(t *testing.T, g string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.as("writer"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `SELECT set_config('fence.resource', 'orders/1001', false), set_config('fence.token', $1, false)`, g); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), updateOrder, "written"); err != nil {
		return sqlState(err)
	}
	return ""
}

func (c *cluster) gateway(t *testing.T) gateway.Config {
	t.Helper()
	cfg := config(t, testenv.PG{GatewayURL: c.as("gate"), WriterURL: c.as("writer")})
	cfg.PGListen, cfg.S3Listen, cfg.Buckets, cfg.BlobDir = "", "", nil, ""
	return cfg
}
