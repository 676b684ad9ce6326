package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/stack"
)

// Postgres is one of the two PostgreSQL servers. [Cluster.Primary] returns the primary.
type Postgres struct {
	Name string // "postgres-a", "postgres-b"
	Addr string // the server's own, without a relay

	mu     sync.Mutex
	cfg    pgserver.Config
	server *pgserver.Server // nil: down
	frozen []int            // its frozen children
	url    string           // the superuser's, of the guarded database
	faulty []string         // ends by itself, and what its removed logs said
}

// Database is the guarded database; its logins are those of package stack.
const (
	Database = "robust"
	password = "robust-password"
)

// ErrDown reports that the server was killed or stopped.
var ErrDown = errors.New("the server is down")

// settings are for both servers. A kill loses nothing from the page cache, so fsync is not needed. A page that is
// written in two parts may be torn, so full_page_writes is. Parameters may contain seals, so none is logged.
func settings(name string) map[string]string {
	return map[string]string{
		"cluster_name":     name, // also the name of its replication connection
		"full_page_writes": "on", "shared_buffers": "64MB", "wal_keep_size": "512MB",
		"max_connections": "400", "superuser_reserved_connections": "10", "max_prepared_transactions": "4", "max_wal_senders": "10",
		"wal_sender_timeout": "5s", "wal_receiver_timeout": "5s", "authentication_timeout": "15s",
		"wal_receiver_status_interval": "1s", "wal_retrieve_retry_interval": "500ms",
		"timezone": "UTC", "log_timezone": "UTC", "log_line_prefix": "%m [%p] %u ", "log_parameter_max_length": "0",
	}
}

// startPostgres starts the primary with the guarded database, and its standby.
func (c *Cluster) startPostgres(ctx context.Context) error {
	for i, name := range []string{"postgres-a", "postgres-b"} {
		port, err := child.FreePort()
		if err != nil {
			return err
		}
		p := &Postgres{Name: name, Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), cfg: pgserver.Config{
			Dir: filepath.Join(c.dir, name), Port: port, Fast: true, Settings: settings(name), Patience: 90 * time.Second,
		}}
		c.pg[i] = p
		c.stack.AtClose(p.Kill)
	}
	primary := c.Primary()
	if err := primary.Start(ctx); err != nil {
		return err
	}
	database := stack.Database{
		Name: Database,
		Logins: []stack.Login{
			{Name: stack.Writer, Password: password, Roles: []string{"fence_writer"}},
			{Name: stack.Gateway, Password: password, Roles: []string{"fence_gateway"}},
			{Name: stack.SQL, Password: password, Roles: []string{"fence_writer"}},
		},
		Migrate: func(ctx context.Context, _ string) error {
			_, err := c.Tool(ctx, "migrate", "up")
			return err
		},
		Then: append([]string{"ALTER ROLE " + stack.Writer + " SET idle_in_transaction_session_timeout = '15s'"}, c.opts.SQL...),
	}
	if err := database.Create(ctx, primary.server.URL("postgres")); err != nil {
		return err
	}
	err := primary.session(ctx, func(conn *pgx.Conn) (err error) {
		c.prefix, err = pgfence.KeyPrefix(conn)(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		n.hash = c.prefix + ":h"
	}
	return c.attach(ctx)
}

// address is a login's URL of the guarded database: at one host, or at the one of several that is the primary.
func address(login string, hosts ...string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(login, password), Host: strings.Join(hosts, ","), Path: "/" + Database}
	u.RawQuery = "sslmode=disable&connect_timeout=3"
	if len(hosts) > 1 {
		u.RawQuery += "&target_session_attrs=read-write"
	}
	return u.String()
}

// Primary is the current primary, whether it runs or not.
func (c *Cluster) Primary() *Postgres {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pg[c.primary]
}

// Standby is the other one.
func (c *Cluster) Standby() *Postgres {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pg[1-c.primary]
}

// Servers returns both, sorted by name.
func (c *Cluster) Servers() []*Postgres { return c.pg[:] }

// attach makes a new standby of the primary in the other server's folder, whatever that held. It returns when the
// standby streams and commits wait for it.
func (c *Cluster) attach(ctx context.Context) error {
	primary, standby := c.Primary(), c.Standby()
	err := standby.Kill()
	lines, failed := c.scan(standby.LogFile(), worse) // before it goes
	standby.note(lines)
	delete(c.scanned, standby.LogFile())
	if err = errors.Join(err, failed, os.RemoveAll(standby.cfg.Dir)); err != nil {
		return err
	}
	if err := primary.server.CopyTo(ctx, standby.cfg.Dir, true); err != nil {
		return err
	}
	addr, err := c.way(standby.Name, primary.Name, primary.Addr)
	if err != nil {
		return err
	}
	if err := stack.Redirect(standby.cfg.Dir, addr); err != nil {
		return err
	}
	if err := standby.Start(ctx); err != nil {
		return err
	}
	if err := c.CaughtUp(ctx); err != nil {
		return err
	}
	if !c.opts.Async {
		if err := stack.WaitForStandby(ctx, primary.URL(), standby.Name); err != nil {
			return err
		}
		if err := c.CaughtUp(ctx); err != nil { // sessions that had not read the setting may have committed without waiting
			return err
		}
	}
	c.attached = true
	return nil
}

const hasReached = `SELECT coalesce(least(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) >= $1::text::pg_lsn, false)`

// CaughtUp waits until the standby has everything that the primary has written so far.
func (c *Cluster) CaughtUp(ctx context.Context) error {
	position, err := says[string](ctx, c.Primary(), "SELECT pg_current_wal_flush_lsn()::text")
	if err != nil {
		return err
	}
	return stack.Until(ctx, "the standby catches up", func(ctx context.Context) error {
		there, err := says[bool](ctx, c.Standby(), hasReached, position)
		if err == nil && !there {
			err = errors.New("it is behind")
		}
		return err
	})
}

// repair completes a failover that failed. The old primary's data is then unknown.
func (c *Cluster) repair(ctx context.Context) error {
	primary := c.Primary()
	standing, err := says[bool](ctx, primary, "SELECT NOT pg_is_in_recovery() OR pg_promote(true, 60)")
	if err != nil || !standing {
		return errors.Join(err, fmt.Errorf("%s is not promoted", primary.Name))
	}
	if _, err := c.Tool(ctx, "fence", "invalidate-all", "--yes"); err != nil {
		return err
	}
	return c.attach(ctx)
}

// Start starts the server on its data if it is down, in its previous role, and returns when it answers.
func (p *Postgres) Start(ctx context.Context) error {
	if pid := p.Pid(); pid != 0 && stateOf(pid) == ended {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return nil
	}
	server, err := pgserver.Start(ctx, p.cfg)
	if err == nil {
		p.server, p.url = server, server.URL(Database)
	}
	return err
}

// ID is the server's name.
func (p *Postgres) ID() string { return p.Name }

// URL is the superuser's address of the guarded database, without a relay. It holds the password.
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

// LogFile is the server's log.
func (p *Postgres) LogFile() string { return filepath.Join(p.cfg.Dir, "postgresql.log") }

// Kill ends all processes of the server like kill -9. It stays down until [Postgres.Start].
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	p.noteEnd()
	err := errors.Join(unlessEnded(p.freeze()), p.end(syscall.SIGKILL), p.server.Kill())
	p.server = nil
	return err
}

// Stop shuts the server down as a service manager does: sessions end, and the standby receives the missing WAL first.
func (p *Postgres) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	p.noteEnd()
	err := errors.Join(p.end(syscall.SIGCONT), p.server.Stop())
	p.server = nil
	return err
}

// noteEnd notes that the server, which is about to be stopped, has ended by itself.
func (p *Postgres) noteEnd() {
	if stateOf(p.server.Pid()) == ended {
		p.faulty = append(p.faulty, fmt.Sprintf("%s (process %d) ended by itself", p.Name, p.server.Pid()))
	}
}

func (p *Postgres) note(faulty []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faulty = append(p.faulty, faulty...)
}

// takeFaulty returns what was noted since the last call.
func (p *Postgres) takeFaulty() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	faulty := p.faulty
	p.faulty = nil
	return faulty
}

// Freeze stops all processes of the server (SIGSTOP).
func (p *Postgres) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return fmt.Errorf("%s: %w", p.Name, ErrDown)
	}
	return p.freeze()
}

func (p *Postgres) freeze() (err error) {
	p.frozen, err = freezeTree(p.server.Pid())
	return err
}

// Thaw resumes them.
func (p *Postgres) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	return p.end(syscall.SIGCONT)
}

// end ends a freeze with a signal to each process, the postmaster last: otherwise it would consider its children hung.
func (p *Postgres) end(sig syscall.Signal) error {
	for _, pid := range p.frozen {
		_ = syscall.Kill(pid, sig) // it may have ended
		child.Disown(pid)
	}
	p.frozen = nil
	return unlessEnded(syscall.Kill(p.server.Pid(), sig))
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

// session calls do with a superuser's session.
func (p *Postgres) session(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(conn)
}

// says queries one value as the superuser.
func says[T any](ctx context.Context, p *Postgres, sql string, args ...any) (value T, err error) {
	err = p.session(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(&value) })
	return value, err
}
