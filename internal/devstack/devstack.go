// Package devstack runs all of fencegate in one process without set-up: embedded Redis nodes, a private PostgreSQL, a
// folder for blobs, and the gateway. `fencegate dev` and `fencegate demo` start it.
//
// The guarantee: state lives in one folder that one process uses at a time; it survives Ctrl-C, kill -9 and restarts,
// and an ephemeral stack leaves nothing. Fences hold across restarts although the Redis nodes lose their data, because
// PostgreSQL keeps the tokens.
//
//	stack, err := devstack.Start(ctx, devstack.Config{Ephemeral: true})
//	if err != nil {
//		return err
//	}
//	defer stack.Stop()
//	fmt.Println(stack.GatewayURL())
package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/lock"
)

// Config configures the folder for the state and the addresses.
type Config struct {
	Dir         string // folder for all state; default: the user's data directory
	Ephemeral   bool   // use a temporary folder and remove it at Stop
	PostgresURL string // a PostgreSQL to use instead of a private one: a superuser's address

	PostgresLeases bool // leases come from PostgreSQL, and there is no Redis

	APIListen, PGListen, S3Listen string            // default: free ports on loopback
	Buckets                       map[string]string // name → rule, created if missing

	Version  string            // reported to clients
	Progress func(line string) // long steps, one line each; default: none
	Logger   *slog.Logger      // default: discards
}

// undoTimeout bounds the removal of what an ephemeral stack created elsewhere.
const undoTimeout = 10 * time.Second

// Stack is a running development stack.
type Stack struct {
	gateway *gateway.Gateway
	names   names
	urls    urls
	nodes   []lock.Node
	prefix  string // the prefix of the Redis keys
	source  string
	dir     string
	undo    []func() error // in order of construction
}

// Start builds the stack; the context bounds only that. If a later part fails, the earlier ones are stopped.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	s := &Stack{}
	if err := s.start(ctx, cfg.withDefaults()); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (cfg Config) withDefaults() Config {
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

// source is the lease source as the database records it.
func (cfg Config) source() string {
	if cfg.PostgresLeases {
		return "postgres"
	}
	return "redis"
}

func (s *Stack) start(ctx context.Context, cfg Config) error {
	if err := s.openDir(cfg); err != nil {
		return err
	}
	serverURL, err := s.postgres(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.Progress("preparing the database")
	if s.urls, err = provision(ctx, serverURL, s.names, cfg.source()); err != nil {
		return fmt.Errorf("prepare the database %s: %w", s.names.database, err)
	}
	if !cfg.PostgresLeases {
		var stopRedis func()
		if s.nodes, stopRedis, err = startRedis(); err != nil {
			return err
		}
		s.undo = append(s.undo, func() error { stopRedis(); return nil })
		if s.prefix, err = keyPrefix(ctx, s.urls.gateway); err != nil {
			return err
		}
	}
	key, err := masterKey(s.dir)
	if err != nil {
		return err
	}
	s.gateway, err = gateway.New(gateway.Config{
		PostgresURL: s.urls.gateway, SQLURL: s.urls.sql,
		RedisNodes: s.nodes, KeyPrefix: s.prefix, EmbeddedNodes: true, InitNodes: true, NodeTimeout: nodeTimeout, PostgresLeases: cfg.PostgresLeases,
		BlobDir: filepath.Join(s.dir, "blobs"), MasterKey: key, Buckets: cfg.Buckets,
		APIListen: cfg.APIListen, PGListen: cfg.PGListen, S3Listen: cfg.S3Listen,
		Version: cfg.Version, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	cfg.Progress("starting the gateway")
	if err := s.gateway.Start(ctx); err != nil {
		return err
	}
	s.undo = append(s.undo, s.gateway.Stop)
	return nil
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

// postgres returns a superuser's address: of the given server, or of a private one.
func (s *Stack) postgres(ctx context.Context, cfg Config) (string, error) {
	if cfg.PostgresURL != "" {
		s.source, s.names = "the PostgreSQL of --postgres-url", foreignNames(cfg.Ephemeral)
		conn, err := pgx.Connect(ctx, cfg.PostgresURL)
		if err != nil {
			return "", err // there is nothing to undo
		}
		_ = conn.Close(ctx)
		if cfg.Ephemeral {
			s.undo = append(s.undo, func() error {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
				defer cancel()
				return unprovision(ctx, cfg.PostgresURL, s.names)
			})
		}
		return cfg.PostgresURL, nil
	}
	s.names = privateNames()
	cfg.Progress("starting PostgreSQL")
	server, err := pgserver.Start(ctx, pgserver.Config{
		Dir: filepath.Join(s.dir, "postgresql"), Fast: cfg.Ephemeral, Ephemeral: cfg.Ephemeral, Logger: cfg.Logger,
	})
	if err != nil {
		return "", err
	}
	s.undo = append(s.undo, server.Stop)
	s.source = "PostgreSQL in " + server.BinDir()
	return server.URL("postgres"), nil
}

// Stop stops everything, last started first. It may be called more than once.
func (s *Stack) Stop() error {
	var errs []error
	for _, v := range slices.Backward(s.undo) {
		errs = append(errs, v())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// GatewayURL is the base URL of the HTTP API.
func (s *Stack) GatewayURL() string { return "http://" + s.gateway.Addrs().API }

// Addrs are the gateway's addresses.
func (s *Stack) Addrs() gateway.Addrs { return s.gateway.Addrs() }

// Wait blocks until a part ends by itself or ctx is done.
func (s *Stack) Wait(ctx context.Context) error { return s.gateway.Wait(ctx) }

// AdminURL is the address of the development database as superuser, without the gateway. It holds a password.
func (s *Stack) AdminURL() string { return s.urls.admin }

// DatabaseURL is the address of the development database as its owner, without the gateway. It holds a password.
func (s *Stack) DatabaseURL() string { return s.urls.people }

// Login is the development database's name, and its owner's name and password.
func (s *Stack) Login() (database, user, password string) {
	return s.names.database, s.names.people, s.names.password
}

// Environ returns the variables with which programs find the stack's parts. They hold passwords.
func (s *Stack) Environ() []string {
	environ := []string{
		"FENCEGATE_GATEWAY=" + s.GatewayURL(),
		"ARMING_DATABASE_URL=" + s.urls.gateway,
		"DATABASE_URL=" + s.urls.people,
		"PGUSER=" + s.names.people, "PGPASSWORD=" + s.names.password, "PGDATABASE=" + s.names.database,
	}
	if len(s.nodes) == 0 {
		return environ
	}
	addrs := make([]string, 0, len(s.nodes))
	for _, n := range s.nodes {
		addrs = append(addrs, n.Addr)
	}
	return append(environ, "FENCEGATE_REDIS_PREFIX="+s.prefix, "FENCEGATE_REDIS="+strings.Join(addrs, ","), "FENCEGATE_REDIS_PASSWORD="+s.nodes[0].Password)
}

// PostgreSQL describes where the database comes from.
func (s *Stack) PostgreSQL() string { return s.source }

// Dir is the folder of all state.
func (s *Stack) Dir() string { return s.dir }
