//go:build unix

package pgwire_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

// shakes makes a client's handshake.
func shakes(cfg *tls.Config) func(net.Conn) {
	return func(conn net.Conn) {
		secure := tls.Client(conn, cfg)
		_ = secure.Handshake()
		_, _ = secure.Read(make([]byte, 1)) // in TLS 1.3 the server's refusal follows the handshake
	}
}

// The log gives the reason of a failed handshake, because the client learns hardly anything of it.
func TestAHandshakeThatFailsIsLoggedWithItsReason(t *testing.T) {
	t.Parallel()
	authority, stranger := newPair(), newPair()
	asks := func(conn net.Conn) {
		send(t, conn, &pgproto3.SSLRequest{})
		_, _ = io.ReadFull(conn, make([]byte, 1))
	}
	for name, c := range map[string]struct {
		does func(net.Conn)
		says string // "": nothing, because neither side is at fault
	}{
		"a stranger's certificate": {func(conn net.Conn) {
			asks(conn)
			shakes(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{stranger.TLS}})(conn)
		}, "unknown authority"},
		"too old a version": {func(conn net.Conn) {
			asks(conn)
			shakes(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})(conn)
		}, "unsupported versions"},
		"a client that does not trust the gateway": {func(conn net.Conn) {
			asks(conn)
			shakes(&tls.Config{ServerName: "127.0.0.1"})(conn)
		}, "bad certificate"},
		"bytes that were sent in plain":      {func(conn net.Conn) { asks(conn); send(t, conn, startup) }, "does not look like a TLS handshake"},
		"another protocol, directly":         {shakes(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}), "unsupported application protocols"},
		"no protocol, directly":              {shakes(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{authority.TLS}}), "ALPN"},
		"a client that leaves":               {asks, ""},
		"a client that leaves in the middle": {func(conn net.Conn) { asks(conn); _, _ = conn.Write([]byte{0x16, 3, 1, 2, 0, 1}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log buffer
			cfg, err := tlsFiles(t, newPair(), authority.Cert).Load(slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, "tcp", upstream(t, serveAnyone), "shop", func(c *pgwire.Config) {
				c.TLS, c.Logger = cfg, slog.New(slog.NewTextHandler(&log, nil))
			})
			conn := r.dial()
			c.does(conn)
			_ = conn.(*net.TCPConn).CloseWrite() // a reset would discard what was sent
			_, _ = io.Copy(io.Discard, conn)
			r.stop()
			text := log.String()
			if says := strings.Contains(text, "a TLS handshake failed") && strings.Contains(text, c.says); (c.says == "") == says || c.says == "" && text != "" {
				t.Errorf("the log does not say %q:\n%s", c.says, text)
			}
			if c.says != "" && !strings.Contains(text, conn.LocalAddr().String()) {
				t.Errorf("the log does not name the client:\n%s", text)
			}
		})
	}
}
