//go:build unix

package pgwire_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestACancelRequestMayGoThroughAnotherGateway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	cfg, err := pgx.ParseConfig(w.pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	network, addr := pgnetwork(cfg)
	other := start(t, network, addr, w.pg.Database)
	conn := w.connect(w.config(w.pg.WriterURL))
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(60)")
		failed <- err
	}()
	pool := w.pg.Pool(t)
	testenv.Eventually(t, "the statement runs", func() bool {
		var runs bool
		err := pool.QueryRow(t.Context(), "SELECT state = 'active' AND query LIKE '%pg_sleep%' FROM pg_stat_activity WHERE pid = $1", conn.PgConn().PID()).Scan(&runs)
		return err == nil && runs
	})
	cancel := other.dial()
	send(t, cancel, &pgproto3.CancelRequest{ProcessID: conn.PgConn().PID(), SecretKey: conn.PgConn().SecretKey()})
	if b, err := io.ReadAll(cancel); err != nil || len(b) != 0 {
		t.Errorf("%q, %v; want the end, once PostgreSQL has the request", b, err)
	}
	if err := <-failed; sqlState(err) != "57014" {
		t.Errorf("%v, want 57014", err)
	}
}

// TestANewerProtocolIsNegotiatedWithPostgreSQL asks a real server, which knows 3.0 only.
func TestANewerProtocolIsNegotiatedWithPostgreSQL(t *testing.T) {
	t.Parallel()
	w := setup(t)
	cfg := w.config(w.pg.WriterURL)
	conn := w.dial()
	send(t, conn, &pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion32, Parameters: map[string]string{"user": cfg.User, "database": cfg.Database, "_pq_.unheard_of": "x"},
	})
	m, err := pgproto3.NewFrontend(conn, conn).Receive()
	negotiated, ok := m.(*pgproto3.NegotiateProtocolVersion)
	if !ok || negotiated.NewestMinorProtocol != pgproto3.ProtocolVersion30 || len(negotiated.UnrecognizedOptions) != 1 {
		t.Errorf("%#v, %v; want PostgreSQL's own answer", m, err)
	}
}

func TestUnixSocketsServeBothSides(t *testing.T) {
	t.Parallel()
	w := setup(t)
	// A socket in front of PostgreSQL, because the tests' cluster has none.
	behind := filepath.Join(t.TempDir(), ".s.PGSQL.1")
	first := serve(t, w.addr, w.pg.Database, listen(t, "unix", behind))
	socket := filepath.Join(t.TempDir(), ".s.PGSQL.5432")
	srv, err := pgwire.New(pgwire.Config{Network: "unix", Addr: behind, Database: w.pg.Database, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	tcp := listen(t, "tcp", "127.0.0.1:0")
	stop := run(t, srv, listen(t, "unix", socket), tcp)
	for _, at := range []struct{ host, port string }{{filepath.Dir(socket), "5432"}, {"127.0.0.1", portOf(tcp)}} {
		cfg, err := pgx.ParseConfig(w.pg.WriterURL)
		if err != nil {
			t.Fatal(err)
		}
		number, _ := strconv.ParseUint(at.port, 10, 16)
		cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = at.host, uint16(number), nil, nil
		conn := w.connect(cfg)
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT 42").Scan(&n); err != nil || n != 42 {
			t.Errorf("by %s: %d, %v", at.host, n, err)
		}
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Errorf("by %s: cancel: %v", at.host, err)
		}
	}
	testenv.Eventually(t, "both cancels arrive", func() bool { return srv.Stats().Cancels == 2 && first.Stats().Cancels == 2 })
	if all := srv.Sessions(); len(all) != 2 || all[0].Client != "unix socket" || !strings.HasPrefix(all[1].Client, "127.0.0.1:") {
		t.Errorf("listed: %+v", all)
	}
	stop()
	if _, err := net.Dial("unix", socket); err == nil {
		t.Error("the socket is still served")
	}
}

func portOf(ln net.Listener) string {
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return port
}

func listen(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// run serves until the test ends, or stop is called.
func run(t *testing.T, srv *pgwire.Server, listeners ...net.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, listeners...) }()
	stopped := false
	stop = func() {
		cancel()
		if !stopped {
			stopped = true
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

func serve(t *testing.T, addr, database string, ln net.Listener) *pgwire.Server {
	t.Helper()
	srv, err := pgwire.New(pgwire.Config{Addr: addr, Database: database, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run(t, srv, ln)
	return srv
}

func TestOneListenerThatFailsEndsTheServer(t *testing.T) {
	t.Parallel()
	srv, err := pgwire.New(pgwire.Config{Addr: "127.0.0.1:1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	one, other := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp", "127.0.0.1:0")
	served := make(chan error, 1)
	go func() { served <- srv.Serve(t.Context(), one, other) }()
	_ = one.Close()
	if err := <-served; err == nil {
		t.Error("no error")
	}
	if _, err := net.Dial("tcp", other.Addr().String()); err == nil {
		t.Error("the other listener is still open")
	}
}

func TestAServerThatAsksForNothingIsSpokenOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says []pgproto3.BackendMessage
		want bool
	}{
		"trust":      {[]pgproto3.BackendMessage{authOK, ready}, true},
		"a password": {[]pgproto3.BackendMessage{&pgproto3.AuthenticationCleartextPassword{}}, false},
	} {
		var log buffer
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(encode(c.says...))
			if !c.want {
				_, _ = io.ReadFull(conn, make([]byte, 5))
				_, _ = conn.Write(encode(authOK, ready))
			}
			_, _ = io.Copy(io.Discard, conn)
		}), "shop", func(c *pgwire.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		for range 2 {
			conn := r.dial()
			send(t, conn, startup)
			if !c.want {
				send(t, conn, &pgproto3.PasswordMessage{Password: "hunter2"})
			}
			frontend := pgproto3.NewFrontend(conn, conn)
			for {
				m, err := frontend.Receive()
				if err != nil {
					t.Fatal(err)
				}
				if _, is := m.(*pgproto3.ReadyForQuery); is {
					break
				}
			}
		}
		testenv.Eventually(t, "both are served", func() bool { return r.srv.Stats().Active == 2 })
		if said := strings.Count(log.String(), "without authentication"); said != map[bool]int{true: 1}[c.want] {
			t.Errorf("%s: said %d times:\n%s", name, said, &log)
		}
		r.stop()
	}
}

func TestAClientThatLeavesItsLoginIsNoWarning(t *testing.T) {
	t.Parallel()
	var log buffer
	w := setup(t, func(c *pgwire.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	cfg := w.config(w.pg.WriterURL)
	conn := w.dial() // psql does the same, and then asks its user for a password
	send(t, conn, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": cfg.User, "database": cfg.Database}})
	if _, err := pgproto3.NewFrontend(conn, conn).Receive(); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	open := w.connect(cfg)
	_ = open.PgConn().Conn().Close() // idle, and without Terminate
	w.stop()
	if text := log.String(); text != "" {
		t.Errorf("the log has\n%s", text)
	}
}

func TestTLSTowardsPostgreSQLMayBeginDirectlyAndOutlivesTheDialling(t *testing.T) {
	t.Parallel()
	const timeout = 7 * time.Second
	server, client := certificate()
	server.NextProtos = []string{"postgresql"}
	protocol := make(chan string, 1)
	late := time.NewTimer(timeout + time.Second)
	defer late.Stop()
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		secure := tls.Server(conn, server)
		defer func() { _ = secure.Close() }()
		err := secure.Handshake()
		protocol <- fmt.Sprint(secure.ConnectionState().NegotiatedProtocol, err)
		readStartup(secure)
		_, _ = secure.Write(encode(authOK, ready))
		<-late.C // the dial timeout has passed
		_, _ = secure.Write(encode(&pgproto3.ParameterStatus{Name: "a", Value: "b"}))
		_, _ = io.ReadFull(secure, make([]byte, 5))
		_, _ = secure.Write(encode(&pgproto3.NoticeResponse{Message: "still here"}))
		_, _ = io.Copy(io.Discard, secure)
	}), "shop", func(c *pgwire.Config) { c.UpstreamTLS, c.UpstreamDirectTLS, c.DialTimeout = client, true, timeout })
	conn := r.dial()
	send(t, conn, startup)
	if got := <-protocol; got != "postgresql<nil>" {
		t.Errorf("ALPN and handshake: %q", got)
	}
	frontend := pgproto3.NewFrontend(conn, conn)
	for {
		m, err := frontend.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if _, is := m.(*pgproto3.ParameterStatus); is {
			send(t, conn, &pgproto3.Sync{})
		}
		if n, is := m.(*pgproto3.NoticeResponse); is {
			if n.Message != "still here" {
				t.Errorf("%+v", n)
			}
			return
		}
		if e, is := m.(*pgproto3.ErrorResponse); is {
			t.Fatalf("%s %s", e.Code, e.Message)
		}
	}
}
