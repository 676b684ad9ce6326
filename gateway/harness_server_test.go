//go:build unix

package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/primary"
	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

// authority signs certificates of hosts and users.
type authority struct {
	certs.Pair

	t    *testing.T
	file string // PEM
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, Pair: certs.New(certs.Authority("authority of " + t.Name()))}
	a.file, _ = a.Files(t)
	return a
}

// issue signs a certificate for a host or a user, in two files.
func (a *authority) issue(name string) (certFile, keyFile string) {
	a.t.Helper()
	return a.Sign(certs.For(name)).Files(a.t)
}

// ownServer starts a PostgreSQL of its own; dir "" is a new folder.
func ownServer(t *testing.T, dir string) *pgserver.Server {
	t.Helper()
	return testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Fast: true, Settings: map[string]string{"shared_buffers": "16MB", "wal_level": "logical"}})
}

func query(t *testing.T, address, sql string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	rows, _ := conn.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// secured turns TLS on in a server, with a certificate for localhost and the rules of hba.
func secured(t *testing.T, s *pgserver.Server, dir string, ca *authority, certFile, keyFile, hba string) {
	t.Helper()
	data := filepath.Join(dir, "data")
	info, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	put := func(name string, content []byte) {
		file := filepath.Join(data, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(file, int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range map[string]string{"server.crt": certFile, "server.key": keyFile, "root.crt": ca.file} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		put(name, content)
	}
	put("pg_hba.conf", []byte(hba))
	for _, sql := range []string{"ALTER SYSTEM SET ssl = on", "ALTER SYSTEM SET ssl_ca_file = 'root.crt'", "SELECT pg_reload_conf()::text"} {
		query(t, s.URL("postgres"), sql)
	}
	config, err := pgconn.ParseConfig(strings.Replace(s.URL("postgres"), "sslmode=disable", "sslmode=require", 1))
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the server offers TLS", func() error {
		conn, err := pgconn.ConnectConfig(t.Context(), config)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err
	})
}

// relayPort is the gateway's PostgreSQL port, configured from the address of a database.
type relayPort struct {
	*pgwire.Server

	addr string
	log  *lines
	stop func() // may be called again
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func openPort(t *testing.T, address string, clients *tls.Config) *relayPort {
	t.Helper()
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	from, err := primary.New(primary.Config{Pool: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = from.Close() })
	p := &relayPort{log: new(lines)}
	if p.Server, err = pgwire.New(relayOf(from, clients, Config{Logger: slog.New(slog.NewTextHandler(p.log, nil)), DrainTimeout: time.Second})); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, ln) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// url returns the address of a login through the port.
func (p *relayPort) url(user, options string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, "secret"), Host: net.JoinHostPort("localhost", portOf(p.addr)), Path: "/postgres", RawQuery: options}
	return u.String()
}

// psql runs a statement, and returns all output.
func psql(t *testing.T, s *pgserver.Server, address, sql string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.BinDir(), "psql"), "-X", "-A", "-t", "-c", sql, address)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// logins creates roles with the password of [port.url].
func logins(t *testing.T, s *pgserver.Server, names ...string) {
	t.Helper()
	for _, name := range names {
		query(t, s.URL("postgres"), fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'secret'", name))
	}
}
