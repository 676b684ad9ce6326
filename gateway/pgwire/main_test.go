//go:build unix

package pgwire_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

type option func(*pgwire.Config)

// relay is a running relay of one test.
type relay struct {
	t    *testing.T
	srv  *pgwire.Server
	addr string
	ask  func() // asks it to stop
	stop func() // asks it to stop and waits; may be called again
}

// start starts a relay to addr, which runs until the test ends.
func start(t *testing.T, network, addr, database string, opts ...option) *relay {
	t.Helper()
	cfg := pgwire.Config{Network: network, Addr: addr, Database: database, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, o := range opts {
		o(&cfg)
	}
	srv, err := pgwire.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	r := &relay{t: t, srv: srv, addr: ln.Addr().String(), ask: cancel}
	stopped := false
	r.stop = func() {
		cancel()
		if !stopped {
			stopped = true
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	}
	t.Cleanup(r.stop)
	return r
}

// world is a relay in front of a database of its own.
type world struct {
	*relay
	pg testenv.PG
}

func setup(t *testing.T, opts ...option) *world {
	t.Helper()
	pg := testenv.Postgres(t)
	cfg, err := pgx.ParseConfig(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	network, addr := pgnetwork(cfg)
	return &world{relay: start(t, network, addr, pg.Database, opts...), pg: pg}
}

func pgnetwork(cfg *pgx.ConnConfig) (network, addr string) {
	if cfg.Host[0] == '/' {
		return "unix", fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port)
	}
	return "tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
}

// config returns a client's configuration for the login of address, through the relay.
func (r *relay) config(address string) *pgx.ConnConfig {
	r.t.Helper()
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		r.t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(r.addr)
	number, _ := strconv.ParseUint(port, 10, 16)
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = host, uint16(number), nil, nil
	return cfg
}

// url returns the address of a login, through the relay.
func (r *relay) url(address string) string {
	r.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		r.t.Fatal(err)
	}
	u.Host, u.RawQuery = r.addr, "sslmode=disable"
	return u.String()
}

func (r *relay) connect(cfg *pgx.ConnConfig) *pgx.Conn {
	r.t.Helper()
	conn, err := pgx.ConnectConfig(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}
