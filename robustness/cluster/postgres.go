package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
)

// Postgres is one of the two PostgreSQL servers. [Cluster.Primary] returns the primary.
type Postgres struct {
	Name string // "postgres-a", "postgres-b"
	Addr string // the server's own, without a relay

	mu     sync.Mutex
	cfg    pgserver.Config
	server *pgserver.Server // nil: down
	frozen []int            // its frozen children; nil: none
	url    string           // the superuser's, of the guarded database
}

// Database is the guarded database.
const Database = "robust"

// ErrDown reports that the server was killed or stopped.
var ErrDown = errors.New("the server is down")

// settings are for both servers. A kill loses nothing from the page cache, so fsync is not needed. A page that is
// written in two parts may be torn, so full_page_writes is.
func settings(name string) map[string]string {
	return map[string]string{
		"cluster_name":                   name, // also the name of its replication connection
		"full_page_writes":               "on",
		"max_connections":                "400",
		"superuser_reserved_connections": "10",
		"max_prepared_transactions":      "4",
		"max_wal_senders":                "10",
		"wal_keep_size":                  "512MB",
		"wal_sender_timeout":             "5s",
		"wal_receiver_timeout":           "5s",
		"wal_receiver_status_interval":   "1s",
		"wal_retrieve_retry_interval":    "500ms",
		"authentication_timeout":         "15s",
		"shared_buffers":                 "64MB",
		"timezone":                       "UTC",
		"log_timezone":                   "UTC",
		"log_line_prefix":                "%m [%p] %u ",
		"log_parameter_max_length":       "0", // parameters may contain seals
	}
}

func (c *Cluster) newPostgres(name string) (*Postgres, error) {
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	return &Postgres{
		Name: name, Addr: "127.0.0.1:" + strconv.Itoa(port),
		cfg: pgserver.Config{
			Dir: filepath.Join(c.dir, name), Port: port, Fast: true, Settings: settings(name), Patience: 90 * time.Second,
		},
	}, nil
}

// start runs the server on its folder and returns when it answers.
func (p *Postgres) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return nil
	}
	server, err := pgserver.Start(ctx, p.cfg)
	if err != nil {
		return err
	}
	p.server, p.url = server, server.URL(Database)
	return nil
}

// URL is the superuser's address of a database, without a relay. It holds the password.
func (p *Postgres) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.url
}

// Pid is the postmaster's; 0 if the server is down.
func (p *Postgres) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return 0
	}
	return p.server.Pid()
}

// running reports that the server was not stopped here, and has not ended by itself.
func (p *Postgres) running() bool {
	pid := p.Pid()
	return pid != 0 && alive(pid)
}

// Kill ends all processes of the server like kill -9. It stays down until [Postgres.Start].
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	pid := p.server.Pid()
	for _, frozen := range p.frozen {
		child.Disown(frozen)
	}
	err := errors.Join(killChildren(pid), p.server.Kill())
	p.server, p.frozen = nil, nil
	return err
}

// Stop shuts the server down as a service manager does: sessions end, and the standby receives the missing WAL first.
func (p *Postgres) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	p.thaw()
	err := p.server.Stop()
	p.server = nil
	return err
}

// Start starts the server on its data, in its previous role, and returns when it answers.
func (p *Postgres) Start(ctx context.Context) error {
	if p.Pid() != 0 && !p.running() { // it ended by itself
		if err := p.Kill(); err != nil {
			return err
		}
	}
	return p.start(ctx)
}

// Freeze stops all processes of the server (SIGSTOP).
func (p *Postgres) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return fmt.Errorf("%s: %w", p.Name, ErrDown)
	}
	if p.frozen != nil {
		return nil
	}
	frozen, err := freezeTree(p.server.Pid())
	p.frozen = append([]int{}, frozen...)
	return err
}

// Thaw resumes them.
func (p *Postgres) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thaw()
	return nil
}

func (p *Postgres) thaw() {
	if p.server != nil && p.frozen != nil {
		thawTree(p.server.Pid(), p.frozen)
	}
	p.frozen = nil
}

// heal thaws and starts the server in its previous role.
func (p *Postgres) heal(ctx context.Context) error { return errors.Join(p.Thaw(), p.Start(ctx)) }

// Connect opens a superuser's session on the guarded database, without a relay.
func (p *Postgres) Connect(ctx context.Context) (*pgx.Conn, error) {
	address := p.URL()
	if address == "" {
		return nil, fmt.Errorf("%s: %w", p.Name, ErrDown)
	}
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	cfg.ConnectTimeout = 5 * time.Second
	return pgx.ConnectConfig(ctx, cfg)
}

// exec runs statements as the superuser, in one session.
func (p *Postgres) exec(ctx context.Context, statements ...string) error {
	conn, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %.200s: %w", p.Name, sql, err)
		}
	}
	return nil
}

// says queries one value as the superuser.
func says[T any](ctx context.Context, p *Postgres, sql string, args ...any) (T, error) {
	var value T
	conn, err := p.Connect(ctx)
	if err != nil {
		return value, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// address is the URL of the guarded database at these hosts, for a login.
func address(login string, hosts string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(login, password), Host: hosts, Path: "/" + Database}
	u.RawQuery = "sslmode=disable&connect_timeout=3"
	return u.String()
}

func (p *Postgres) LogFile() string { return filepath.Join(p.cfg.Dir, "postgresql.log") }
