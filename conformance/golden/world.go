package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/redisserver"
)

// world is a PostgreSQL, a Redis and a gateway before them.
type world struct {
	dir, binary string
	pg          *pgserver.Server
	redis       *redisserver.Server
	admin       *pgxpool.Pool // the superuser's, on the guarded database
	gateway     *exec.Cmd
	log         bytes.Buffer // of the gateway
	api         string       // addresses
	pgPort      string
	s3          string
}

const (
	sessionsOfUser = 12 // an ended session frees its slot a moment later

	database    = "golden"
	bearer      = "golden-bearer-token"
	rootAccess  = "golden-root"
	rootSecret  = "golden-root-secret"
	masterKey   = "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f"
	masterKeyID = "golden"
	s3Domain    = "s3.golden.test"
	password    = "golden-password"
)

// logins creates the logins of the guarded database. Each can log in with the password; those whose name ends in _trust
// also without one.
const logins = `
CREATE ROLE app LOGIN PASSWORD 'golden-password' IN ROLE fence_writer;
CREATE ROLE app_trust LOGIN IN ROLE fence_writer;
CREATE ROLE app_md5 LOGIN PASSWORD 'golden-password';
CREATE ROLE app_clear LOGIN PASSWORD 'golden-password';
CREATE ROLE reader_trust LOGIN IN ROLE fence_writer;
CREATE ROLE strict_trust LOGIN IN ROLE fence_writer;
CREATE ROLE stranger_trust LOGIN;
CREATE ROLE few_trust LOGIN IN ROLE fence_writer;
CREATE ROLE golden_gateway LOGIN PASSWORD 'golden-password' IN ROLE fence_gateway;
CREATE ROLE golden_sql LOGIN PASSWORD 'golden-password' IN ROLE fence_writer;
ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO fence_writer;
GRANT USAGE ON SCHEMA public TO PUBLIC;
`

const hba = `host all app_md5 127.0.0.1/32 md5
host all app_clear 127.0.0.1/32 password
host all /^.*_trust$ 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
`

func start(ctx context.Context) (w *world, err error) {
	w = new(world)
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.dir, err = os.MkdirTemp("", "fencegate-golden-"); err != nil {
		return nil, err
	}
	if err = child.RemoveAtDeath(w.dir); err != nil {
		return w, err
	}
	if err = os.Chmod(w.dir, 0o711); err != nil { // as root, PostgreSQL runs as another user
		return w, err
	}
	w.binary = filepath.Join(w.dir, "fencegate")
	build := exec.CommandContext(ctx, "go", "build", "-o", w.binary, "./cmd/fencegate")
	build.Stderr = os.Stderr
	if err = build.Run(); err != nil {
		return w, err
	}
	if w.redis, err = redisserver.Start(ctx, redisserver.Config{}); err != nil {
		return w, err
	}
	if err = w.startPostgres(ctx); err != nil {
		return w, err
	}
	return w, w.startGateway(ctx)
}

func (w *world) startPostgres(ctx context.Context) (err error) {
	// PostgreSQL before 16 has no patterns for users.
	lines := strings.ReplaceAll(hba, "/^.*_trust$", "app_trust,reader_trust,strict_trust,stranger_trust,few_trust")
	path := filepath.Join(w.dir, "pg_hba.conf")
	if err := os.WriteFile(path, []byte(lines), 0o644); err != nil { //nolint:gosec // the server's user reads it
		return err
	}
	w.pg, err = pgserver.Start(ctx, pgserver.Config{
		Dir: filepath.Join(w.dir, "pg"), Ephemeral: true, Fast: true,
		Settings: map[string]string{"hba_file": path, "timezone": "UTC", "log_timezone": "UTC", "max_prepared_transactions": "4"},
	})
	if err != nil {
		return err
	}
	for _, sql := range []string{"CREATE DATABASE " + database, "SET password_encryption = 'md5'"} {
		if err := w.exec(ctx, "postgres", sql); err != nil {
			return err
		}
	}
	up := exec.CommandContext(ctx, w.binary, "migrate", "up")
	up.Env = append(os.Environ(), "FENCEGATE_POSTGRES_URL="+w.pg.URL(database))
	if out, err := up.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate up: %w: %s", err, out)
	}
	if err := w.exec(ctx, database, logins, "SET password_encryption = 'md5'", "ALTER ROLE app_md5 PASSWORD '"+password+"'"); err != nil {
		return err
	}
	w.admin, err = pgxpool.New(ctx, w.pg.URL(database))
	return err
}

// exec runs statements as the superuser, in one session.
func (w *world) exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, w.pg.URL(database))
	if err != nil {
		return err
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", sql, err), conn.Close(ctx))
		}
	}
	return conn.Close(ctx)
}

// login is the URL of the guarded database for a login.
func (w *world) login(name string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(name, password), Host: w.pg.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

func (w *world) startGateway(ctx context.Context) error {
	for name, content := range map[string]string{"master": masterKeyID + ":" + masterKey, "token": bearer, "s3secret": rootSecret} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	for _, addr := range []*string{&w.api, &w.pgPort, &w.s3} {
		port, err := child.FreePort()
		if err != nil {
			return err
		}
		*addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	w.gateway = exec.CommandContext(ctx, w.binary, "serve", "--redis", w.redis.Addr, "--init", "--node-timeout", "5s",
		"--master-key-file", filepath.Join(w.dir, "master"), "--token-file", filepath.Join(w.dir, "token"), "--api-listen", w.api,
		"--pg-listen", w.pgPort, "--pg-policy", "reader_trust=read-only,strict_trust=grant-required,*=open",
		"--pg-max-user-connections", strconv.Itoa(sessionsOfUser),
		"--s3-listen", w.s3, "--blobs", filepath.Join(w.dir, "blobs"), "--s3-access-key", rootAccess, "--s3-secret-key-file", filepath.Join(w.dir, "s3secret"),
		"--s3-domain", s3Domain, "--advertise-host", "gateway.golden.test", "--max-ttl", "1h", "--drain-timeout", "1s")
	w.gateway.Env = append(os.Environ(), "FENCEGATE_POSTGRES_URL="+w.login("golden_gateway"), "FENCEGATE_SQL_URL="+w.login("golden_sql"), "TZ=UTC")
	w.gateway.Stdout, w.gateway.Stderr = &w.log, &w.log
	w.gateway.Cancel = func() error { return w.gateway.Process.Signal(syscall.SIGTERM) }
	if err := w.gateway.Start(); err != nil {
		return err
	}
	for {
		// It succeeds when PostgreSQL and Redis are available, and the node is admitted.
		err := recovered(func() { newPlayer(ctx, w).setup(&step{}, `api POST /v1/leases | body {"resource":"golden"}`) })
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the gateway is not ready: %w", errors.Join(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// names are the fixed parts of the mask: value, name, value, name …
func (w *world) names() []string {
	_, s3Port, _ := net.SplitHostPort(w.s3)
	_, pgPort, _ := net.SplitHostPort(w.pgPort)
	return []string{
		w.api, "<api>", w.s3, "<s3>", w.pgPort, "<pg>", w.redis.Addr, "<redis>", w.pg.Addr(), "<postgresql>", w.dir, "<dir>",
		":" + s3Port, ":<s3 port>", `"port": ` + pgPort, `"port": <pg port>`, `"port":` + pgPort, `"port":<pg port>`,
	}
}

func (w *world) close() (err error) {
	if w.gateway != nil && w.gateway.Process != nil {
		_ = w.gateway.Process.Signal(syscall.SIGTERM)
		if ended := w.gateway.Wait(); ended != nil {
			err = fmt.Errorf("the gateway: %w: %s", ended, w.log.String())
		}
	}
	if w.admin != nil {
		w.admin.Close()
	}
	if w.pg != nil {
		err = errors.Join(err, w.pg.Kill())
	}
	if w.redis != nil {
		err = errors.Join(err, w.redis.Close())
	}
	if w.dir != "" {
		err = errors.Join(err, os.RemoveAll(w.dir))
		child.Removed(w.dir)
	}
	return err
}
