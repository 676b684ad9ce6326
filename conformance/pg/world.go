package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/migrate"
)

// terms are a suite's requirements.
type terms struct {
	fenced      string            // the database with the fence and the grants; "": none
	schema      string            // SQL for it
	binDir      string            // PostgreSQL's; "": the machine's
	settings    map[string]string // of PostgreSQL
	hba         string            // lines of pg_hba.conf before the superuser's; "": passwords for all
	certificate map[string][]byte // server.crt, server.key and root.crt, for the server and the relay; nil: no TLS
	relay       pgwire.Config     // without addresses
}

// world is a PostgreSQL with the relay before it. Both listen on TCP and on a Unix socket in a folder that only the
// server's user can enter.
type world struct {
	dir            string
	server         *pgserver.Server
	direct, relay  place
	password       string // of the superuser
	current, stale fence.Grant
	owner          *syscall.Credential // the server's user; nil: this process's
	options        string              // startup options for the suites: the current grant, or none
	stops          []func() error
}

// place is one address of the server.
type place struct{ host, port, sockets string }

const resource = "orders/1001"

func start(ctx context.Context, t terms) (w *world, err error) {
	w = new(world)
	if w.dir, err = os.MkdirTemp("", "conformance-pg-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err = child.RemoveAtDeath(w.dir); err != nil {
		return w, err
	}
	if err = os.Chmod(w.dir, 0o711); err != nil { // as root, PostgreSQL runs as another user
		return w, err
	}
	if err = w.startServer(ctx, t); err != nil {
		return w, err
	}
	if t.certificate != nil {
		if err = w.certify(ctx, t.certificate, &t.relay); err != nil {
			return w, err
		}
	}
	if t.fenced != "" {
		if err = w.fence(ctx, t.fenced, t.schema); err != nil {
			return w, err
		}
	}
	return w, w.startRelay(ctx, t.relay)
}

func (w *world) data() string { return filepath.Join(w.dir, "pg", "data") }

func (w *world) startServer(ctx context.Context, t terms) error {
	settings := map[string]string{"unix_socket_directories": w.data()}
	maps.Copy(settings, t.settings)
	if t.hba != "" {
		settings["hba_file"] = filepath.Join(w.dir, "pg_hba.conf")
		lines := t.hba + "\nhost all " + pgserver.Superuser + " 127.0.0.1/32 scram-sha-256\n"
		if err := os.WriteFile(settings["hba_file"], []byte(lines), 0o644); err != nil { //nolint:gosec // the server's user reads it
			return err
		}
	}
	server, err := pgserver.Start(ctx, pgserver.Config{Dir: filepath.Join(w.dir, "pg"), BinDir: t.binDir, Ephemeral: true, Fast: true, Settings: settings})
	if err != nil {
		return err
	}
	w.server = server
	u, err := url.Parse(server.URL("postgres"))
	if err != nil {
		return err
	}
	w.password, _ = u.User.Password()
	w.direct = place{host: u.Hostname(), port: u.Port(), sockets: w.data()}
	info, err := os.Stat(w.data())
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		w.owner = &syscall.Credential{Uid: st.Uid, Gid: st.Gid}
	}
	return nil
}

// give makes the server's user the owner of a file or folder.
func (w *world) give(path string) error {
	if w.owner == nil {
		return nil
	}
	return os.Chown(path, int(w.owner.Uid), int(w.owner.Gid))
}

// fence installs the fence in a database, and arms two grants; the first one is then stale.
func (w *world) fence(ctx context.Context, database, schema string) error {
	if database != "postgres" {
		if err := w.exec(ctx, "postgres", "CREATE DATABASE "+pgx.Identifier{database}.Sanitize()); err != nil {
			return err
		}
	}
	if err := migrate.Up(ctx, w.server.URL(database), migrate.All); err != nil {
		return err
	}
	if err := w.exec(ctx, database, schema); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, w.server.URL(database))
	if err != nil {
		return err
	}
	defer pool.Close()
	f := pgfence.New(pool)
	for token, grant := range []*fence.Grant{&w.stale, &w.current} {
		*grant = fence.Grant{Resource: resource, Token: fence.Token(token + 1), Seal: fence.NewSeal()}
		if err := f.Arm(ctx, fence.Arming{Resource: resource, Token: grant.Token, SealHash: grant.Seal.Hash(), Holder: "conformance"}); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) exec(ctx context.Context, database, sql string) error {
	conn, err := pgx.Connect(ctx, w.server.URL(database))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// startRelay starts one relay for TCP, and one between Unix sockets.
func (w *world) startRelay(ctx context.Context, cfg pgwire.Config) error {
	// The suites provoke errors.
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	cfg.Addr = w.server.Addr()
	if err := w.serve(ctx, cfg, ln); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return err
	}
	w.relay = place{host: host, port: port, sockets: filepath.Join(w.dir, "relay")}
	if err := os.Mkdir(w.relay.sockets, 0o700); err != nil {
		return err
	}
	socket := filepath.Join(w.relay.sockets, ".s.PGSQL."+port)
	if ln, err = net.Listen("unix", socket); err != nil {
		return err
	}
	cfg.Network, cfg.Addr = "unix", filepath.Join(w.direct.sockets, ".s.PGSQL."+w.direct.port)
	cfg.TLS, cfg.UpstreamTLS = nil, nil // Unix sockets have no TLS
	if err := w.serve(ctx, cfg, ln); err != nil {
		return err
	}
	return errors.Join(w.give(socket), w.give(w.relay.sockets))
}

func (w *world) serve(ctx context.Context, cfg pgwire.Config, ln net.Listener) error {
	srv, err := pgwire.New(cfg)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(serving, ln) }()
	w.stops = append(w.stops, func() error {
		cancel()
		return <-served
	})
	return nil
}

func (w *world) close() (err error) {
	for _, stop := range w.stops {
		err = errors.Join(err, stop())
	}
	if w.server != nil {
		err = errors.Join(err, w.server.Kill())
	}
	err = errors.Join(err, os.RemoveAll(w.dir))
	child.Removed(w.dir)
	return err
}

// certify installs one certificate for both the server and the
// relay, so that clients bind SCRAM to the same certificate.
func (w *world) certify(ctx context.Context, files map[string][]byte, cfg *pgwire.Config) error {
	for name, content := range files {
		path := filepath.Join(w.data(), name)
		if err := errors.Join(os.WriteFile(path, content, 0o600), w.give(path)); err != nil {
			return err
		}
	}
	pair, err := tls.X509KeyPair(files["server.crt"], files["server.key"])
	if err != nil {
		return fmt.Errorf("the suite's certificate: %w", err)
	}
	cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	cfg.UpstreamTLS = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}
	cfg.UpstreamTLS.RootCAs.AppendCertsFromPEM(files["root.crt"])
	for _, sql := range []string{"ALTER SYSTEM SET ssl_ca_file = 'root.crt'", "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"} {
		if err := w.exec(ctx, "postgres", sql); err != nil {
			return err
		}
	}
	for { // a reload is asynchronous
		err := w.exec(ctx, "postgres", "DO $$ BEGIN ASSERT current_setting('ssl')::bool; END $$")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
