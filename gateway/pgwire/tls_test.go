//go:build unix

package pgwire_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// certificate returns the configuration of a server with a certificate for 127.0.0.1, and of a client that trusts it.
func certificate() (server *tls.Config, client *tls.Config) {
	own := newPair()
	return &tls.Config{Certificates: []tls.Certificate{own.TLS}}, &tls.Config{RootCAs: own.Pool(), ServerName: "127.0.0.1"}
}

func TestDriverWorksOverTLS(t *testing.T) {
	t.Parallel()
	server, client := certificate()
	w := setup(t, func(c *pgwire.Config) { c.TLS = server })
	for _, negotiation := range []string{"postgres", "direct"} {
		cfg := w.config(w.pg.WriterURL)
		cfg.TLSConfig, cfg.SSLNegotiation = client.Clone(), negotiation
		if negotiation == "direct" {
			cfg.TLSConfig.NextProtos = []string{"postgresql"}
		}
		conn := w.connect(cfg)
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT 42").Scan(&n); err != nil || n != 42 {
			t.Errorf("%s: %d, %v", negotiation, n, err)
		}
		if _, ok := conn.PgConn().Conn().(*tls.Conn); !ok {
			t.Errorf("%s: the session is not encrypted", negotiation)
		}
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Errorf("%s: cancel over TLS: %v", negotiation, err)
		}
	}
	testenv.Eventually(t, "both cancels arrive", func() bool { return w.srv.Stats().Cancels == 2 })
	w.stop()
}

func TestBytesAheadOfTheHandshakeAreNotBelieved(t *testing.T) {
	t.Parallel()
	server, _ := certificate()
	reached := make(chan struct{}, 1)
	r := start(t, "tcp", upstream(t, func(net.Conn) { reached <- struct{}{} }), "shop", func(c *pgwire.Config) { c.TLS = server })
	conn := r.dial()
	send(t, conn, &pgproto3.SSLRequest{}, startup) // in one write, as if injected by an attacker in the middle
	b, _ := io.ReadAll(conn)
	if len(b) == 0 || b[0] != 'S' || strings.Contains(string(b), "R\x00\x00\x00") {
		t.Errorf("the client got %q", b)
	}
	select {
	case <-reached:
		t.Error("a startup packet from before the handshake reached PostgreSQL")
	default:
	}
}

func TestDirectTLSNeedsItsALPN(t *testing.T) {
	t.Parallel()
	server, client := certificate()
	r := start(t, "tcp", upstream(t, serveAnyone), "shop", func(c *pgwire.Config) { c.TLS = server })
	conn := tls.Client(r.dial(), client)
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	send(t, conn, startup)
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a direct TLS connection without ALPN was served")
	}
}

func TestUpstreamTLSIsInsistedOn(t *testing.T) {
	t.Parallel()
	server, client := certificate()
	serve := func(answer byte) func(net.Conn) {
		return func(conn net.Conn) {
			if request := readStartup(conn); len(request) != 8 {
				return
			}
			_, _ = conn.Write([]byte{answer})
			if answer != 'S' {
				return
			}
			secure := tls.Server(conn, server)
			defer func() { _ = secure.Close() }()
			readStartup(secure)
			_, _ = secure.Write(encode(authOK, ready))
			_, _ = io.Copy(io.Discard, secure)
		}
	}
	for name, c := range map[string]struct {
		answer byte
		trust  *tls.Config
		code   string
		log    string
	}{
		"offered":             {'S', client, "", ""},
		"not offered":         {'N', client, "08006", "does not offer TLS"},
		"unknown certificate": {'S', &tls.Config{ServerName: "127.0.0.1", RootCAs: x509.NewCertPool()}, "08006", "unknown authority"},
	} {
		var log buffer
		r := start(t, "tcp", upstream(t, serve(c.answer)), "shop", func(cfg *pgwire.Config) {
			cfg.UpstreamTLS, cfg.Logger = c.trust, slog.New(slog.NewTextHandler(&log, nil))
		})
		conn := r.dial()
		send(t, conn, startup)
		frontend := pgproto3.NewFrontend(conn, conn)
		m, err := frontend.Receive()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		code := ""
		if e, is := m.(*pgproto3.ErrorResponse); is {
			code = e.Code
		}
		if code != c.code {
			t.Errorf("%s: %T %q, want %q", name, m, code, c.code)
		}
		_ = conn.Close()
		r.stop()
		if !strings.Contains(log.String(), c.log) {
			t.Errorf("%s: the log does not say %q:\n%s", name, c.log, &log)
		}
	}
}

func TestChannelBindingThatCannotWorkIsFoundBeforehand(t *testing.T) {
	t.Parallel()
	own, trust := certificate()
	other, _ := certificate()
	addr := upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write([]byte{'S'})
		secure := tls.Server(conn, own)
		_, _ = io.Copy(io.Discard, secure)
		_ = secure.Close()
	})
	for name, c := range map[string]struct {
		upstream, client *tls.Config
		says             string // "": nothing
	}{
		"plain on both legs":         {nil, nil, ""},
		"TLS for clients only":       {nil, other, ""},
		"TLS upstream only":          {trust, nil, "SCRAM-SHA-256-PLUS"},
		"two certificates":           {trust, other, "channel_binding=disable"},
		"PostgreSQL's own for both":  {trust, own, ""},
		"own, found by a function":   {trust, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &own.Certificates[0], nil }}, ""},
		"other, found by a function": {trust, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &other.Certificates[0], nil }}, "channel_binding=disable"},
	} {
		srv, err := pgwire.New(pgwire.Config{Addr: addr, TLS: c.client, UpstreamTLS: c.upstream})
		if err != nil {
			t.Fatal(err)
		}
		err = srv.CheckChannelBinding(t.Context())
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
