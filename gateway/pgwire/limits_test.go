//go:build unix

package pgwire_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestConnectionsOverTheLimitAreToldSo(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *pgwire.Config) { c.MaxConnections = 2 })
	first, second := w.connect(w.config(w.pg.WriterURL)), w.connect(w.config(w.pg.WriterURL))
	_, err := pgx.ConnectConfig(t.Context(), w.config(w.pg.WriterURL))
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "53300" || refused.Severity != "FATAL" {
		t.Errorf("the third connection: %v, want FATAL 53300", err)
	}
	// A cancel request gets through even if the port is full.
	if err := first.PgConn().CancelRequest(t.Context()); err != nil {
		t.Errorf("cancel: %v", err)
	}
	testenv.Eventually(t, "the cancel request arrives", func() bool { return w.srv.Stats().Cancels == 1 })
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the place is free", func() bool { return w.srv.Taken() == 1 })
	w.connect(w.config(w.pg.WriterURL))
}

// buffer collects a log that several goroutines write.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestPanicEndsItsSessionOnly(t *testing.T) {
	t.Parallel()
	server, client := certificate()
	var log buffer
	panics := make(chan bool, 10)
	w := setup(t, func(c *pgwire.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if <-panics {
				panic("of the test")
			}
			return &server.Certificates[0], nil
		}}
	})
	cfg := w.config(w.pg.WriterURL)
	cfg.TLSConfig = client
	panics <- false
	before := w.connect(cfg)
	panics <- true
	if _, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		t.Error("the session that panicked was served")
	}
	panics <- false
	after := w.connect(cfg)
	for _, conn := range []*pgx.Conn{before, after} {
		if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("another session: %v", err)
		}
	}
	testenv.Eventually(t, "the log shows the panic and its place", func() bool { // its client disconnects before that
		text := log.String()
		return strings.Contains(text, "of the test") && strings.Contains(text, "goroutine")
	})
}

func TestLoginHasOneDeadlineForBothDirections(t *testing.T) {
	t.Parallel()
	// The client begins late in its time, which counts from accepting it. A second deadline would begin only then.
	const timeout = 5 * time.Second
	addr := upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = io.Copy(io.Discard, conn)
	})
	r := start(t, "tcp", addr, "shop", func(c *pgwire.Config) { c.LoginTimeout = timeout })
	conn := r.dial()
	late, cancel := context.WithTimeout(t.Context(), timeout*4/5)
	defer cancel()
	<-late.Done()
	began := time.Now()
	send(t, conn, startup)
	_, _ = pgproto3.NewFrontend(conn, conn).Receive()
	if took := time.Since(began); took >= timeout {
		t.Errorf("the login was ended %v after it had begun, late; its limit is %v from accepting the connection", took, timeout)
	}
}
