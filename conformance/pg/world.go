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
	"os"
	"path/filepath"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/stack"
)

// terms are a suite's requirements.
type terms struct {
	stack.PostgresConfig

	certificate map[string][]byte // server.crt, server.key and root.crt, for the server and the relay; nil: no TLS
	relay       pgwire.Config     // without addresses
}

// world is a PostgreSQL with the relay before it. Both listen on TCP and on a Unix socket in a folder that only the
// server's user can enter.
type world struct {
	*stack.Stack

	pg             *stack.Postgres
	direct, relay  place
	current, stale fence.Grant
	options        string // startup options for the suites: the current grant, or none
}

// place is one address of the server.
type place struct{ host, port, sockets string }

const resource = "orders/1001"

func start(ctx context.Context, t terms) (w *world, err error) {
	s, err := stack.New("")
	if err != nil {
		return nil, err
	}
	w = &world{Stack: s, direct: place{sockets: filepath.Join(s.Dir, "postgresql", "data")}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	settings := map[string]string{"unix_socket_directories": w.direct.sockets}
	maps.Copy(settings, t.Settings)
	t.Settings = settings
	if w.pg, err = s.Postgres(ctx, t.PostgresConfig); err != nil {
		return nil, err
	}
	w.direct.host, w.direct.port, _ = net.SplitHostPort(w.pg.Addr())
	if t.certificate != nil {
		if err := w.certify(ctx, t.certificate, &t.relay); err != nil {
			return nil, err
		}
	}
	if t.Database.Migrate == nil {
		for token, grant := range []*fence.Grant{&w.stale, &w.current} {
			if *grant, err = w.pg.Arm(ctx, resource, fence.Token(token+1)); err != nil {
				return nil, err
			}
		}
	}
	return w, w.startRelay(ctx, t.relay)
}

// startRelay starts one relay for TCP, and one between Unix sockets.
func (w *world) startRelay(ctx context.Context, cfg pgwire.Config) error {
	cfg.Logger, cfg.Addr = slog.New(slog.DiscardHandler), w.pg.Addr() // the suites provoke errors
	addr, err := w.serve(ctx, cfg, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.relay.host, w.relay.port, _ = net.SplitHostPort(addr)
	w.relay.sockets = filepath.Join(w.Dir, "relay")
	if err := os.Mkdir(w.relay.sockets, 0o700); err != nil {
		return err
	}
	cfg.Network, cfg.Addr = "unix", filepath.Join(w.direct.sockets, ".s.PGSQL."+w.direct.port)
	cfg.TLS, cfg.UpstreamTLS = nil, nil // Unix sockets have no TLS
	socket, err := w.serve(ctx, cfg, "unix", filepath.Join(w.relay.sockets, ".s.PGSQL."+w.relay.port))
	return errors.Join(err, w.pg.Give(socket), w.pg.Give(w.relay.sockets))
}

// serve starts a relay, and returns its address.
func (w *world) serve(ctx context.Context, cfg pgwire.Config, network, addr string) (string, error) {
	srv, err := pgwire.New(cfg)
	if err != nil {
		return "", err
	}
	ln, err := net.Listen(network, addr)
	if err != nil {
		return "", err
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(serving, ln) }()
	w.AtClose(func() error {
		cancel()
		return <-served
	})
	return ln.Addr().String(), nil
}

// certify installs one certificate for both the server and the
// relay, so that clients bind SCRAM to the same certificate.
func (w *world) certify(ctx context.Context, files map[string][]byte, cfg *pgwire.Config) error {
	for name, content := range files {
		path := filepath.Join(w.pg.Dir, "data", name)
		if err := errors.Join(os.WriteFile(path, content, 0o600), w.pg.Give(path)); err != nil {
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
	if err := w.pg.Exec(ctx, "ALTER SYSTEM SET ssl_ca_file = 'root.crt'", "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return stack.Until(ctx, "the server has reloaded its configuration", func(ctx context.Context) error {
		return w.pg.Exec(ctx, "DO $$ BEGIN ASSERT current_setting('ssl')::bool; END $$")
	})
}
