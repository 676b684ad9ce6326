//go:build unix

// Package s3stack runs a PostgreSQL and a fenced S3 server on their own folders, for conformance checks and benchmarks.
//
// The guarantee: the servers are ready when the start returns, listen on loopback only, and leave nothing after Close,
// or when the process dies.
package s3stack

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/migrate"
)

// DatabaseConfig configures PostgreSQL.
type DatabaseConfig struct {
	Parent   string            // parent of the database's own folder; default: the system's temporary folder
	Fast     bool              // give up durability for speed
	Settings map[string]string // of postgresql.conf
}

// Database is a PostgreSQL with the schema, and a folder for its files.
type Database struct {
	Dir  string
	Pool *pgxpool.Pool // the superuser's

	server *pgserver.Server
}

// StartDatabase starts PostgreSQL.
func StartDatabase(ctx context.Context, cfg DatabaseConfig) (d *Database, err error) {
	d = &Database{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.Dir, err = os.MkdirTemp(cfg.Parent, "fencegate-s3-"); err != nil {
		return nil, err
	}
	if err = child.RemoveAtDeath(d.Dir); err != nil {
		return d, err
	}
	if err = os.Chmod(d.Dir, 0o711); err != nil { // as root, PostgreSQL runs as another user
		return d, err
	}
	d.server, err = pgserver.Start(ctx, pgserver.Config{Dir: filepath.Join(d.Dir, "pg"), Ephemeral: true, Fast: cfg.Fast, Settings: cfg.Settings})
	if err != nil {
		return d, err
	}
	if err = migrate.Up(ctx, d.URL(), migrate.All); err != nil {
		return d, err
	}
	d.Pool, err = pgxpool.New(ctx, d.URL())
	return d, err
}

// URL is the superuser's address. It holds the password.
func (d *Database) URL() string { return d.server.URL("postgres") }

// Pid is the postmaster's process id.
func (d *Database) Pid() int { return d.server.Pid() }

// Arm raises the fence of a resource, as acquiring a lease does.
func (d *Database) Arm(ctx context.Context, resource string, token fence.Token) error {
	return pgfence.New(d.Pool).Arm(ctx, fence.Arming{Resource: resource, Token: token, SealHash: fence.NewSeal().Hash(), Holder: "s3stack"})
}

// Close ends PostgreSQL and removes the folder.
func (d *Database) Close() error {
	if d.Pool != nil {
		d.Pool.Close()
	}
	var err error
	if d.server != nil {
		err = d.server.Kill()
	}
	if d.Dir != "" {
		err = errors.Join(err, os.RemoveAll(d.Dir))
		child.Removed(d.Dir)
	}
	return err
}

// ServerConfig configures the S3 server.
type ServerConfig struct {
	PostgresURL string
	Blobs       string                  // folder of the blobs
	Root        credentials.Credentials // default: random ones
	MasterKey   string                  // for the leases' credentials, 64 hexadecimal digits; default: a random one
	Addr        string                  // default: a free port of 127.0.0.1
	Rule        objects.Rule            // of buckets that are created over S3
	Logger      *slog.Logger            // default: discards
}

// Server is an S3 server in this process.
type Server struct {
	*s3.Server

	Addr string
	Root credentials.Credentials

	keys *credentials.Keyring
	pool *pgxpool.Pool
	stop func() error
}

// StartServer starts to serve S3 requests.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	if cfg.Root.AccessKeyID == "" {
		cfg.Root = credentials.Credentials{AccessKeyID: "root-" + rand.Text(), SecretAccessKey: rand.Text()}
	}
	if cfg.MasterKey == "" {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // never fails
		cfg.MasterKey = hex.EncodeToString(key)
	}
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:0"
	}
	s := &Server{Root: cfg.Root}
	var err error
	if s.keys, err = credentials.ParseKeyring("stack:" + cfg.MasterKey); err != nil {
		return nil, err
	}
	store, err := blob.OpenDir(cfg.Blobs)
	if err != nil {
		return nil, err
	}
	if s.pool, err = pgxpool.New(ctx, cfg.PostgresURL); err != nil {
		return nil, err
	}
	s.Server, err = s3.New(s3.Deps{Pool: s.pool, Store: store, Keys: s.keys, Logger: cfg.Logger}, s3.Options{
		RootAccessKey: cfg.Root.AccessKeyID, RootSecretKey: cfg.Root.SecretAccessKey, DefaultRule: cfg.Rule,
	})
	if err != nil {
		s.pool.Close()
		return nil, err
	}
	ln, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		s.pool.Close()
		return nil, err
	}
	s.Addr = ln.Addr().String()
	s.serve(ctx, ln)
	return s, nil
}

func (s *Server) serve(ctx context.Context, ln net.Listener) {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, ln) }()
	s.stop = func() error {
		cancel()
		err := <-served
		s.pool.Close()
		return err
	}
}

// Issue returns the credentials of a grant, which need not be current.
func (s *Server) Issue(resource string, token fence.Token) (credentials.Credentials, error) {
	return s.keys.Issue(resource, token, time.Now().Add(time.Hour), 0)
}

// Close ends the server.
func (s *Server) Close() error { return s.stop() }
