//go:build unix

package continuity

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/migrate"
)

// patience bounds waits on a busy machine.
const patience = 2 * time.Minute

var serverSettings = map[string]string{"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on", "shared_buffers": "16MB", "max_wal_size": "64MB"}

// serve starts a server on the data in dir; "" is a new server.
func serve(t *testing.T, dir string) *pgserver.Server {
	t.Helper()
	return testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Fast: true, Settings: serverSettings})
}

func copyOf(t *testing.T, s *pgserver.Server, standby bool) (dir string) {
	t.Helper()
	dir = testenv.ServerDir(t)
	if err := s.CopyTo(t.Context(), dir, standby); err != nil {
		t.Fatal(err)
	}
	return dir
}

// ask runs a statement as the superuser, and returns its single value.
func ask(t *testing.T, s *pgserver.Server, sql string, args ...any) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var said string
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&said); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	return said
}

// home is an address that moves, like a virtual IP. It decides where new connections go.
type home struct {
	mu sync.Mutex
	to *pgserver.Server
}

func (h *home) moveTo(s *pgserver.Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.to = s
}

func (h *home) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	h.mu.Lock()
	to := h.to
	h.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, "tcp", to.Addr())
}

// group is a migrated PostgreSQL at an address that moves, and the Redis nodes of a locker.
type group struct {
	*pgserver.Server
	home  home
	nodes []lock.Node
	pool  *pgxpool.Config
}

func startGroup(t *testing.T) *group {
	t.Helper()
	g := &group{Server: serve(t, "")}
	g.home.to = g.Server
	if err := migrate.Up(t.Context(), g.URL("postgres"), migrate.Fence); err != nil {
		t.Fatal(err)
	}
	ask(t, g.Server, `CREATE ROLE program LOGIN PASSWORD 'program' IN ROLE fence_gateway`)
	config, err := pgxpool.ParseConfig(g.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.User, config.ConnConfig.Password = "program", "program"
	config.ConnConfig.DialFunc = g.home.dial
	g.pool = config
	_, g.nodes = inMemory(t, 3)
	return g
}

// program is a Go program of the group that uses no gateway.
type program struct {
	*Armer
	locker *lock.Locker
}

func (g *group) program(t *testing.T) program {
	t.Helper()
	p := g.open(t, g.pool, lock.Config{})
	p.initialise(t)
	return p
}

// initialise admits the nodes of a new group.
func (p program) initialise(t *testing.T) {
	t.Helper()
	if err := admin.Of(p.locker).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// open opens a program that the nodes have not admitted yet.
func (g *group) open(t *testing.T, pool *pgxpool.Config, cfg lock.Config) program {
	t.Helper()
	a, err := Open(t.Context(), Config{Pool: pool, Nodes: g.nodes, KeyPrefix: cfg.KeyPrefix})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Nodes, cfg.Armer, cfg.Epochs, cfg.NodeTimeout = g.nodes, a, a, 5*time.Second
	l, err := lock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); _ = a.Close() })
	return program{a, l}
}

func (p program) try(t *testing.T, resource string) (*lock.Lease, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return p.locker.TryAcquire(ctx, resource, lock.WithTTL(lock.DefaultMaxTTL))
}

func (p program) acquire(t *testing.T, resource string) (*lock.Lease, fence.Grant) {
	t.Helper()
	lease, err := p.try(t, resource)
	if err != nil {
		t.Fatal(err)
	}
	grant, err := lease.Grant()
	if err != nil {
		t.Fatal(err)
	}
	return lease, grant
}

func release(t *testing.T, lease *lock.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// wantForgotten checks that no resource's lease is given, and that the error names the command.
func (p program) wantForgotten(t *testing.T, command string) {
	t.Helper()
	var err error
	testenv.Eventually(t, "the program hears that PostgreSQL may have forgotten", func() bool {
		if _, err = p.try(t, "orders/1001"); err == nil {
			t.Fatal("a lease was given where PostgreSQL may have forgotten")
		}
		return errors.As(err, new(*ForgottenError))
	})
	if !strings.HasSuffix(err.Error(), command) {
		t.Errorf("the refusal is %q; want one that ends in %q", err, command)
	}
	if _, err := p.try(t, "orders/2"); !errors.As(err, new(*ForgottenError)) {
		t.Errorf("another resource: %v; want a ForgottenError", err)
	}
	if err := p.Check(t.Context()); !errors.As(err, new(*ForgottenError)) {
		t.Errorf("Check: %v; want a ForgottenError", err)
	}
}

func (p program) untilTrusted(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "PostgreSQL is trusted again", func() bool { return p.Check(t.Context()) == nil })
}

const sqlToken = `SELECT token::text FROM fence.resources WHERE resource = $1`
