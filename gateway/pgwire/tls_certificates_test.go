//go:build unix

package pgwire_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/testenv"
)

// newPair is a self-signed certificate, an authority of its own.
func newPair() certs.Pair { return certs.New(certs.For("127.0.0.1")) }

func tlsFiles(t *testing.T, p certs.Pair, clientCA []byte) pgwire.TLSFiles {
	t.Helper()
	dir := t.TempDir()
	files := pgwire.TLSFiles{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	p.Write(t, files.Cert, files.Key)
	if clientCA != nil {
		files.ClientCA = filepath.Join(dir, "ca")
		certs.Replace(t, files.ClientCA, clientCA)
	}
	return files
}

func serveAnyone(conn net.Conn) {
	readStartup(conn)
	_, _ = conn.Write(encode(authOK, ready))
	_, _ = io.Copy(io.Discard, conn)
}

// encrypted opens a TLS connection in the usual way and sends a startup packet.
func (r *relay) encrypted(own ...tls.Certificate) *tls.Conn {
	r.t.Helper()
	conn := r.dial()
	send(r.t, conn, &pgproto3.SSLRequest{})
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		r.t.Fatal(err)
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: own}) // the test checks the certificate itself
	if err := secure.Handshake(); err != nil {
		r.t.Fatal(err)
	}
	b, _ := startup.Encode(nil)
	_, _ = secure.Write(b)
	return secure
}

// answer returns the SQLSTATE of the client's error, or "" if it is served.
func answer(conn net.Conn) string {
	switch m, err := pgproto3.NewFrontend(conn, conn).Receive(); m := m.(type) {
	case *pgproto3.AuthenticationOk:
		return ""
	case *pgproto3.ErrorResponse:
		return m.Code + " " + m.Message
	default:
		return err.Error()
	}
}

func TestCertificatesFollowTheirFiles(t *testing.T) {
	t.Parallel()
	var log buffer
	first, second, third := newPair(), newPair(), newPair()
	files := tlsFiles(t, first, nil)
	cfg, err := files.Load(slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, "tcp", upstream(t, serveAnyone), "shop", func(c *pgwire.Config) { c.TLS = cfg })
	shows := func(when string, want certs.Pair) {
		t.Helper()
		conn := r.encrypted()
		if got := conn.ConnectionState().PeerCertificates[0].Raw; string(got) != string(want.TLS.Certificate[0]) {
			t.Errorf("%s: another certificate is shown", when)
		}
		if a := answer(conn); a != "" {
			t.Errorf("%s: %s", when, a)
		}
	}
	shows("at first", first)
	before := r.encrypted()
	certs.Replace(t, files.Cert, second.Cert)
	shows("with a key that does not belong to the certificate", first)
	shows("and again", first)
	if n := strings.Count(log.String(), "stays with its old certificate"); n != 1 {
		t.Errorf("the log says %d times, not once, that the files can't be used:\n%s", n, log.String())
	}
	certs.Replace(t, files.Key, second.Key)
	shows("with both files replaced", second)
	certs.Replace(t, files.Cert, []byte("nonsense"))
	shows("with nonsense", second)
	if err := os.Remove(files.Cert); err != nil {
		t.Fatal(err)
	}
	shows("without a file", second)
	certs.Replace(t, files.Key, third.Key)
	certs.Replace(t, files.Cert, third.Cert)
	shows("with a third pair", third)
	if a := answer(before); a != "" {
		t.Errorf("a connection from before: %s", a)
	}
	if text := log.String(); strings.Contains(text, "PRIVATE") {
		t.Errorf("the log has a key:\n%s", text)
	}
}

func TestFilesThatCannotBeUsedAreNamed(t *testing.T) {
	t.Parallel()
	p := newPair()
	for name, c := range map[string]struct {
		spoil func(*pgwire.TLSFiles)
		says  string
	}{
		"no key file":      {func(f *pgwire.TLSFiles) { f.Key += "s" }, "keys"},
		"another's key":    {func(f *pgwire.TLSFiles) { certs.Replace(t, f.Key, newPair().Key) }, "does not match"},
		"no authority":     {func(f *pgwire.TLSFiles) { certs.Replace(t, f.ClientCA, p.Key) }, "no certificate"},
		"no authority yet": {func(f *pgwire.TLSFiles) { f.ClientCA += "s" }, "cas"},
	} {
		files := tlsFiles(t, p, p.Cert)
		c.spoil(&files)
		if _, err := files.Load(slog.Default()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestClientsWithoutACertificateOfTheAuthorityAreRefused(t *testing.T) {
	t.Parallel()
	const refused = "28000 connection requires a valid client certificate"
	ours, theirs := newPair(), newPair()
	files := tlsFiles(t, newPair(), ours.Cert)
	cfg, err := files.Load(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{}, 10)
	r := start(t, "tcp", upstream(t, func(conn net.Conn) { reached <- struct{}{}; serveAnyone(conn) }), "shop", func(c *pgwire.Config) { c.TLS = cfg })
	plain := r.dial()
	send(t, plain, startup)
	if a := answer(plain); a != refused {
		t.Errorf("a plain connection: %q", a)
	}
	if a := answer(r.encrypted()); a != refused {
		t.Errorf("TLS without a certificate: %q", a)
	}
	if a := answer(r.encrypted(theirs.TLS)); !strings.Contains(a, "unknown certificate authority") {
		t.Errorf("a stranger's certificate: %q", a)
	}
	if len(reached) != 0 {
		t.Error("PostgreSQL heard of a client that was refused")
	}
	if a := answer(r.encrypted(ours.TLS)); a != "" {
		t.Errorf("a certificate of the authority: %q", a)
	}
	certs.Replace(t, files.ClientCA, theirs.Cert)
	if a := answer(r.encrypted(theirs.TLS)); a != "" {
		t.Errorf("a certificate of the new authority: %q", a)
	}
	if a := answer(r.encrypted(ours.TLS)); !strings.Contains(a, "unknown certificate authority") {
		t.Errorf("a certificate of the former authority: %q", a)
	}
	cancel := r.dial() // libpq sends it without TLS
	send(t, cancel, &pgproto3.CancelRequest{ProcessID: 1, SecretKey: []byte("1234")})
	testenv.Eventually(t, "a plain cancel request passes", func() bool { return r.srv.Stats().Cancels == 1 })
}

func TestPostgreSQLIsShownNoCertificateOfTheGateway(t *testing.T) {
	t.Parallel()
	var log buffer
	server, gateways := newPair(), newPair()
	shown := make(chan int, 1)
	addr := upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write([]byte{'S'})
		secure := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{server.TLS}, ClientAuth: tls.RequestClientCert})
		defer func() { _ = secure.Close() }()
		readStartup(secure)
		shown <- len(secure.ConnectionState().PeerCertificates)
		_, _ = secure.Write(encode(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "28000", Message: "connection requires a valid client certificate"}))
	})
	r := start(t, "tcp", addr, "shop", func(c *pgwire.Config) {
		c.UpstreamTLS = &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{gateways.TLS}}
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	conn := r.dial()
	send(t, conn, startup)
	if n := <-shown; n != 0 {
		t.Errorf("PostgreSQL was shown %d certificates: whoever connects is whom they name", n)
	}
	if a := answer(conn); !strings.HasPrefix(a, "28000") {
		t.Errorf("the client got %q", a)
	}
	testenv.Eventually(t, "the log says why", func() bool { return strings.Contains(log.String(), "can't pass a relay") })
	r.stop()
}

func TestAnotherUpstreamServesWhileTheFirstIsAway(t *testing.T) {
	t.Parallel()
	cancels := make(chan string, 2)
	host := func(name string) string {
		return upstream(t, func(conn net.Conn) {
			p := readStartup(conn)
			if len(p) == 16 {
				cancels <- name
				return
			}
			_, _ = conn.Write(encode(authOK, &pgproto3.ParameterStatus{Name: "host", Value: name}, ready))
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	second, third := host("second"), host("third")
	r := start(t, "tcp", testenv.DeadAddr(t), "shop", func(c *pgwire.Config) { c.Fallbacks = []pgwire.Upstream{{Addr: second}, {Addr: third}} })
	conn := r.dial()
	send(t, conn, startup)
	frontend := pgproto3.NewFrontend(conn, conn)
	if _, err := frontend.Receive(); err != nil {
		t.Fatal(err)
	}
	if m, err := frontend.Receive(); err != nil || m.(*pgproto3.ParameterStatus).Value != "second" {
		t.Errorf("%v, %v; want the second host", m, err)
	}
	cancel := r.dial()
	send(t, cancel, &pgproto3.CancelRequest{ProcessID: 1, SecretKey: []byte("1234")})
	if a, b := <-cancels, <-cancels; a == b {
		t.Errorf("a cancel request went to %s twice; either host may have the session", a)
	}
}

func TestNoUpstreamAnswers(t *testing.T) {
	t.Parallel()
	first, second := testenv.DeadAddr(t), testenv.DeadAddr(t)
	r := start(t, "tcp", first, "shop", func(c *pgwire.Config) {
		c.Fallbacks = []pgwire.Upstream{{Addr: second}, {Network: "unix", Addr: filepath.Join(t.TempDir(), "none")}}
	})
	conn := r.dial()
	send(t, conn, startup)
	if code, message := finalError(t, conn); code != "08006" || !strings.Contains(message, first) || !strings.Contains(message, second) {
		t.Errorf("%s %s", code, message)
	}
}
