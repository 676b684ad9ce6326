//go:build unix

package pgwire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestStopEndsIdleSessionsAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *pgwire.Config) { c.DrainTimeout = 2 * time.Minute }) // idle sessions must not use it up
	conns := []*pgx.Conn{w.connect(w.config(w.pg.WriterURL)), w.connect(w.config(w.pg.WriterURL))}
	if _, err := conns[0].Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.stop()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("stopping with idle sessions took %v", took)
	}
	for _, conn := range conns {
		if _, err := conn.Exec(context.Background(), "SELECT 1"); sqlState(err) != "57P01" {
			t.Errorf("%v, want 57P01", err)
		}
	}
	if got := w.srv.Stats(); got.Active != 0 || got.Sessions != 2 {
		t.Errorf("%+v", got)
	}
}

func TestStopLetsATransactionEnd(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *pgwire.Config) { c.DrainTimeout = time.Minute })
	if _, err := w.pg.Pool(t).Exec(t.Context(), "CREATE TABLE t (n int); GRANT ALL ON t TO fence_writer"); err != nil {
		t.Fatal(err)
	}
	conn := w.connect(w.config(w.pg.WriterURL))
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		w.stop()
		close(stopped)
	}()
	testenv.Eventually(t, "the relay takes no more connections", func() bool {
		c, err := net.Dial("tcp", w.addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	for range 3 {
		if _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (1)"); err != nil {
			t.Fatalf("in the transaction that was open: %v", err)
		}
	}
	select {
	case <-stopped:
		t.Fatal("the relay stopped in the middle of a transaction")
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatalf("commit: %v", err)
	}
	<-stopped
	if _, err := conn.Exec(t.Context(), "SELECT 1"); sqlState(err) != "57P01" {
		t.Errorf("after the transaction: %v, want 57P01", err)
	}
	var n int
	if err := w.pg.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n); err != nil || n != 3 {
		t.Errorf("%d rows, %v", n, err)
	}
}

func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *pgwire.Config) { c.DrainTimeout = 300 * time.Millisecond })
	inTx, busy := w.connect(w.config(w.pg.WriterURL)), w.connect(w.config(w.pg.WriterURL))
	if _, err := inTx.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	failed := make(chan error, 1)
	go func() {
		_, err := busy.Exec(context.Background(), "SELECT pg_sleep(120)")
		failed <- err
	}()
	pool := w.pg.Pool(t)
	testenv.Eventually(t, "the statement runs", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%' AND state = 'active'").Scan(&n)
		return err == nil && n == 1
	})
	began := time.Now()
	w.stop()
	if took := time.Since(began); took > time.Minute { // the statement runs for two minutes
		t.Errorf("stopping took %v", took)
	}
	if err := <-failed; sqlState(err) != "57P01" {
		t.Errorf("the busy session: %v, want 57P01", err)
	}
	if _, err := inTx.Exec(context.Background(), "SELECT 1"); sqlState(err) != "57P01" {
		t.Errorf("the session in a transaction: %v, want 57P01", err)
	}
}

func TestUnreachablePostgreSQLIsNamed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	end, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = end.Close() }()
	gone := end.LocalAddr().String() // taken, so that nobody else listens there
	r := start(t, "tcp", gone, "")
	_, err = pgx.ConnectConfig(t.Context(), r.config("postgres://ada:hunter2@x/shop"))
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "08006" || pgErr.Severity != "FATAL" || !strings.Contains(pgErr.Message, "PostgreSQL at "+gone) {
		t.Errorf("%v; want FATAL 08006 that names %s", err, gone)
	}
}

func TestSessionOfAKilledBackendEndsWithPostgreSQLsReason(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.connect(w.config(w.pg.WriterURL))
	if _, err := w.pg.Pool(t).Exec(t.Context(), "SELECT pg_terminate_backend($1)", conn.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the session is over", func() bool { return w.srv.Stats().Active == 0 })
	_, err := conn.Exec(t.Context(), "SELECT 1")
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "57P01" || strings.Contains(pgErr.Message, "gateway") {
		t.Errorf("%v; want PostgreSQL's own 57P01", err)
	}
}

func TestClientThatVanishesLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	w := setup(t)
	pool := w.pg.Pool(t)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE t (n int); GRANT ALL ON t TO fence_writer"); err != nil {
		t.Fatal(err)
	}
	conn := w.connect(w.config(w.pg.WriterURL))
	pid := conn.PgConn().PID()
	// In the middle of a COPY.
	reader, writer := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().CopyFrom(context.Background(), reader, "COPY t FROM STDIN")
		_ = reader.Close()
		copied <- err
	}()
	if _, err := writer.Write([]byte("1\n")); err != nil {
		t.Fatal(err)
	}
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	_, _ = writer.Write([]byte("2\n"))
	_ = writer.Close()
	if err := <-copied; err == nil {
		t.Error("COPY over a closed connection succeeded")
	}
	testenv.Eventually(t, "the session and its backend are gone", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid).Scan(&n)
		return err == nil && n == 0 && w.srv.Stats().Active == 0
	})
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows of half a COPY, %v", n, err)
	}
}

// A stop may take long; in the meantime sessions still end for other reasons.
func TestSessionsThatAStopWaitsForEndForTheOtherReasonsToo(t *testing.T) {
	t.Parallel()
	begin := &pgproto3.Query{String: "BEGIN"}
	f := &fences{tokens: map[string]fence.Token{"r": 34}}
	for name, c := range map[string]struct {
		limit func(*pgwire.Config)
		then  func()
		code  string
	}{
		"a newer grant": {
			func(c *pgwire.Config) { c.Fences, c.FencesEvery = f.read, 5*time.Millisecond },
			func() { f.set("r", 35, nil) }, "ZF001",
		},
		"idle in its transaction": {func(c *pgwire.Config) { c.IdleInTransactionTimeout = 5 * time.Second }, func() {}, "25P03"},
	} {
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(encode(authOK, ready))
			_, _ = io.ReadFull(conn, make([]byte, size(begin)))
			_, _ = conn.Write(encode(&pgproto3.ReadyForQuery{TxStatus: 'T'}))
			_, _ = io.Copy(io.Discard, conn)
		}), "shop", c.limit, func(c *pgwire.Config) { c.DrainTimeout = 20 * time.Second })
		conn := r.dial()
		send(t, conn, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
			"user": "ada", "database": "shop", "fence.resource": "r", "fence.token": "34." + someSeal,
		}}, begin)
		testenv.Eventually(t, "it is in a transaction", func() bool {
			all := r.srv.Sessions()
			return len(all) == 1 && all[0].State == "idle in transaction"
		})
		r.ask()
		refusing(t, r)
		c.then()
		if code, text := finalError(t, conn); code != c.code {
			t.Errorf("%s: %s %s; want %s", name, code, text, c.code)
		}
		r.stop()
	}
}
