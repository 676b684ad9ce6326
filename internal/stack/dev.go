//go:build unix

package stack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/lock"
)

// DevConfig configures the stack of `fencegate dev`.
type DevConfig struct {
	Dir         string // folder for all state; default: the user's data directory
	Ephemeral   bool   // use a temporary folder and remove it at Close
	PostgresURL string // a PostgreSQL to use instead of a private one: a superuser's address

	PostgresLeases bool // leases come from PostgreSQL, and there is no Redis

	APIListen, PGListen, S3Listen string            // default: free ports on loopback
	Buckets                       map[string]string // name → rule, created if missing

	Version  string            // reported to clients
	Progress func(line string) // long steps, one line each; default: none
	Logger   *slog.Logger      // default: discards
}

// Dev is everything in one process: embedded Redis nodes, a private PostgreSQL, a folder for blobs, and the gateway.
//
// The guarantee: state lives in one folder that one process uses at a time; it survives Ctrl-C, kill -9 and restarts,
// and an ephemeral stack leaves nothing. Fences hold across restarts although the Redis nodes lose their data, because
// PostgreSQL keeps the tokens.
type Dev struct {
	*Stack

	gateway  *gateway.Gateway
	server   string // the superuser's address
	database Database
	nodes    []lock.Node
	prefix   string // the prefix of the Redis keys
	source   string
}

const (
	// undoTimeout bounds the removal of what an ephemeral stack created elsewhere.
	undoTimeout = 10 * time.Second
	// devNodes is how many embedded nodes run: the smallest number whose quorum survives the loss of one.
	devNodes = 3
	// devNodeTimeout is generous, because the nodes run on a busy machine.
	devNodeTimeout = time.Second
)

// StartDev builds the stack; the context bounds only that. If a later part fails, the earlier ones are stopped.
func StartDev(ctx context.Context, cfg DevConfig) (*Dev, error) {
	d := &Dev{Stack: &Stack{}}
	if err := d.start(ctx, cfg.withDefaults()); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (cfg DevConfig) withDefaults() DevConfig {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	for _, listen := range []*string{&cfg.APIListen, &cfg.PGListen, &cfg.S3Listen} {
		if *listen == "" {
			*listen = "127.0.0.1:0"
		}
	}
	return cfg
}

// leaseSource is the lease source as the database records it.
func (cfg DevConfig) leaseSource() string {
	if cfg.PostgresLeases {
		return "postgres"
	}
	return "redis"
}

func (d *Dev) start(ctx context.Context, cfg DevConfig) (err error) {
	if d.Stack, err = openDir(cfg); err != nil {
		d.Stack = &Stack{}
		return err
	}
	if err := d.postgres(ctx, cfg); err != nil {
		return err
	}
	cfg.Progress("preparing the database")
	if err := d.prepare(ctx, cfg.leaseSource()); err != nil {
		return fmt.Errorf("prepare the database %s: %w", d.database.Name, err)
	}
	if !cfg.PostgresLeases {
		if d.nodes, err = d.embeddedRedis(devNodes); err != nil {
			return err
		}
		if d.prefix, err = keyPrefix(ctx, d.url(devGateway)); err != nil {
			return err
		}
	}
	key, err := masterKey(d.Dir)
	if err != nil {
		return err
	}
	cfg.Progress("starting the gateway")
	d.gateway, err = d.InProcess(ctx, gateway.Config{
		PostgresURL: d.url(devGateway), SQLURL: d.url(devSQL),
		RedisNodes: d.nodes, KeyPrefix: d.prefix, EmbeddedNodes: true, NodeTimeout: devNodeTimeout, PostgresLeases: cfg.PostgresLeases,
		BlobDir: filepath.Join(d.Dir, "blobs"), MasterKey: key, Buckets: cfg.Buckets,
		APIListen: cfg.APIListen, PGListen: cfg.PGListen, S3Listen: cfg.S3Listen,
		Version: cfg.Version, Logger: cfg.Logger,
	})
	return err
}

// keyPrefix returns the database's own key prefix.
func keyPrefix(ctx context.Context, url string) (string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgfence.KeyPrefix(conn)(ctx)
}

// The indices of a development database's logins: its owner, and two of the gateway, whose passwords are new at each
// start.
const (
	devPeople = iota
	devGateway
	devSQL
)

func devDatabase(name, owner, password, rest string) Database {
	return Database{Name: name, Owner: owner, Logins: []Login{
		devPeople:  {owner, password, []string{"fence_writer", "fence_protector"}},
		devGateway: {rest + "_gateway", "", []string{"fence_gateway"}},
		devSQL:     {rest + "_sql", "", []string{"fence_writer"}},
	}}.withDefaults()
}

// privateDatabase is for our own server, which listens on loopback only.
func privateDatabase() Database { return devDatabase("dev", "dev", "dev", "fencegate_dev") }

// foreignDatabase is for another server. The names identify fencegate, and the password is random. An ephemeral stack
// has names of its own: what it drops at its end is nobody else's.
func foreignDatabase(ephemeral bool) Database {
	own := "fencegate_dev"
	if ephemeral {
		own += "_" + strings.ToLower(rand.Text()[:12])
	}
	return devDatabase(own, own, rand.Text(), own)
}

// prepare creates the database, and sets the lease source, since the stack has the only gateway. It may be repeated.
func (d *Dev) prepare(ctx context.Context, source string) error {
	if err := d.refuseSecond(ctx); err != nil {
		return err
	}
	d.database.Then = []string{
		// The login of SQL over HTTP gets its rights on the tables of the database's owner.
		"ALTER DEFAULT PRIVILEGES FOR ROLE " + quoted(d.database.Owner) + " GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO " + quoted(d.database.Logins[devSQL].Name),
		"SELECT fence.set_source('" + source + "')",
	}
	return d.database.create(ctx, d.server)
}

const othersEnd = 5 * time.Second // until the sessions of a stack that has just ended are gone

// refuseSecond refuses a database in which the gateway of another stack is at work: the new passwords would lock it out.
func (d *Dev) refuseSecond(ctx context.Context) error {
	server, err := pgx.Connect(ctx, d.server)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close(context.WithoutCancel(ctx)) }()
	const sqlSession = "SELECT pid FROM pg_stat_activity WHERE usename = $1 ORDER BY backend_start LIMIT 1"
	login := d.database.Logins[devGateway].Name
	for began := time.Now(); ; {
		var pid int
		err := server.QueryRow(ctx, sqlSession, login).Scan(&pid)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return err
		case time.Since(began) > othersEnd:
			return fmt.Errorf("in use by another \"fencegate dev\" (the login %s has a session, pid %d): end it, or use --ephemeral", login, pid)
		}
		leases.Pause(ctx, 100*time.Millisecond) // the next query fails if ctx has ended
	}
}

// postgres finds the server: the given one, or a private one.
func (d *Dev) postgres(ctx context.Context, cfg DevConfig) error {
	if cfg.PostgresURL != "" {
		d.source, d.server, d.database = "the PostgreSQL of --postgres-url", cfg.PostgresURL, foreignDatabase(cfg.Ephemeral)
		conn, err := pgx.Connect(ctx, cfg.PostgresURL)
		if err != nil {
			return err // there is nothing to undo
		}
		_ = conn.Close(ctx)
		if cfg.Ephemeral {
			d.AtClose(func() error {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
				defer cancel()
				return d.database.drop(ctx, cfg.PostgresURL)
			})
		}
		return nil
	}
	cfg.Progress("starting PostgreSQL")
	server, err := pgserver.Start(ctx, pgserver.Config{
		Dir: filepath.Join(d.Dir, "postgresql"), Fast: cfg.Ephemeral, Ephemeral: cfg.Ephemeral, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	d.AtClose(server.Stop)
	d.source, d.server, d.database = "PostgreSQL in "+server.BinDir(), server.URL("postgres"), privateDatabase()
	return nil
}

// url is the database's address for a login.
func (d *Dev) url(login int) string {
	address, _ := d.database.address(d.server, d.database.Logins[login].Name) // connected before
	return address
}

// GatewayURL is the base URL of the HTTP API.
func (d *Dev) GatewayURL() string { return "http://" + d.gateway.Addrs().API }

// Addrs are the gateway's addresses.
func (d *Dev) Addrs() gateway.Addrs { return d.gateway.Addrs() }

// Wait blocks until a part ends by itself or ctx is done.
func (d *Dev) Wait(ctx context.Context) error { return d.gateway.Wait(ctx) }

// AdminURL is the address of the development database as superuser, without the gateway. It holds a password.
func (d *Dev) AdminURL() string {
	address, _ := d.database.address(d.server, "")
	return address
}

// DatabaseURL is the address of the development database as its owner, without the gateway. It holds a password.
func (d *Dev) DatabaseURL() string { return d.url(devPeople) }

// Login is the development database's name, and its owner's name and password.
func (d *Dev) Login() (database, user, password string) {
	owner := d.database.Logins[devPeople]
	return d.database.Name, owner.Name, owner.Password
}

// Environ returns the variables with which programs find the stack's parts. They hold passwords.
func (d *Dev) Environ() []string {
	database, user, password := d.Login()
	environ := []string{
		"FENCEGATE_GATEWAY=" + d.GatewayURL(),
		"ARMING_DATABASE_URL=" + d.url(devGateway),
		"DATABASE_URL=" + d.DatabaseURL(),
		"PGUSER=" + user, "PGPASSWORD=" + password, "PGDATABASE=" + database,
	}
	if len(d.nodes) == 0 {
		return environ
	}
	addrs := make([]string, 0, len(d.nodes))
	for _, n := range d.nodes {
		addrs = append(addrs, n.Addr)
	}
	return append(environ, "FENCEGATE_REDIS_PREFIX="+d.prefix, "FENCEGATE_REDIS="+strings.Join(addrs, ","), "FENCEGATE_REDIS_PASSWORD="+d.nodes[0].Password)
}

// PostgreSQL describes where the database comes from.
func (d *Dev) PostgreSQL() string { return d.source }
