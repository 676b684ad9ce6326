//go:build unix

package pgwire_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return fmt.Sprint(err)
}

func TestDriverWorksInEveryQueryMode(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeCacheStatement,
	} {
		cfg := w.config(w.pg.WriterURL)
		cfg.DefaultQueryExecMode = mode
		conn := w.connect(cfg)
		for range 3 {
			var sum int
			if err := conn.QueryRow(t.Context(), "SELECT sum(n) FROM generate_series(1, $1::int) n", 100).Scan(&sum); err != nil || sum != 5050 {
				t.Errorf("%v: %d, %v", mode, sum, err)
			}
		}
		if _, err := conn.Exec(t.Context(), "SELECT 1/0"); sqlState(err) != "22012" {
			t.Errorf("%v: error %v", mode, err)
		}
	}
}

func TestPipelineAndBatchesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.connect(w.config(w.pg.WriterURL))
	batch := &pgx.Batch{}
	const n = 2000
	for i := range n {
		batch.Queue("SELECT $1::int, repeat('x', $1::int)", i)
	}
	results := conn.SendBatch(t.Context(), batch)
	for i := range n {
		var got int
		var text string
		if err := results.QueryRow().Scan(&got, &text); err != nil || got != i || len(text) != i {
			t.Fatalf("result %d: %d, %d bytes, %v", i, got, len(text), err)
		}
	}
	if err := results.Close(); err != nil {
		t.Error(err)
	}
}

func TestCopyPassesBothWays(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.connect(w.config(w.pg.URL))
	if _, err := conn.Exec(t.Context(), "CREATE TABLE t (n int, s text)"); err != nil {
		t.Fatal(err)
	}
	const rows = 100_000
	n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"t"}, []string{"n", "s"}, pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
		return []any{i, strings.Repeat("x", i%300)}, nil
	}))
	if err != nil || n != rows {
		t.Fatalf("copied %d rows in, %v", n, err)
	}
	direct, err := pgx.Connect(t.Context(), w.pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct.Close(context.WithoutCancel(t.Context())) }()
	sum := func(conn *pgx.Conn) [32]byte {
		h := sha256.New()
		if _, err := conn.PgConn().CopyTo(t.Context(), h, "COPY (SELECT * FROM t ORDER BY n) TO STDOUT"); err != nil {
			t.Fatal(err)
		}
		return [32]byte(h.Sum(nil))
	}
	if sum(conn) != sum(direct) {
		t.Error("COPY TO through the relay differs from direct")
	}
	// The session stays usable after the client aborts a COPY.
	if _, err := conn.PgConn().CopyFrom(t.Context(), io.MultiReader(strings.NewReader("1\tx\n"), failing{}), "COPY t FROM STDIN"); err == nil {
		t.Error("a broken COPY succeeded")
	}
	var left int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&left); err != nil || left != rows {
		t.Errorf("after the broken COPY: %d rows, %v", left, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("no more") }

func TestLargeRowsPass(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.connect(w.config(w.pg.WriterURL))
	const size = 50 << 20
	big := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	var got []byte
	if err := conn.QueryRow(t.Context(), "SELECT $1::bytea", big).Scan(&got); err != nil || !bytes.Equal(got, big) {
		t.Errorf("a row of 50 MiB: %d bytes, %v", len(got), err)
	}
}

func TestCancelReachesTheRightSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn, other := w.connect(w.config(w.pg.WriterURL)), w.connect(w.config(w.pg.WriterURL))
	for name, c := range map[string]*pgx.Conn{"canceled": conn, "other": other} {
		_ = name
		failed := make(chan error, 1)
		pid := c.PgConn().PID()
		go func() {
			_, err := c.Exec(t.Context(), "SELECT pg_sleep(60)")
			failed <- err
		}()
		pool := w.pg.Pool(t)
		testenv.Eventually(t, "the statement runs", func() bool {
			var runs bool
			err := pool.QueryRow(t.Context(), "SELECT state = 'active' AND query LIKE '%pg_sleep%' FROM pg_stat_activity WHERE pid = $1", pid).Scan(&runs)
			return err == nil && runs
		})
		if err := c.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; sqlState(err) != "57014" {
			t.Errorf("%s: %v, want 57014", name, err)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("%s: the session is gone: %v", name, err)
		}
	}
	testenv.Eventually(t, "two cancels are counted", func() bool { return w.srv.Stats().Cancels == 2 })
}

func TestNotificationsArriveInAnIdleSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	listener, sender := w.connect(w.config(w.pg.WriterURL)), w.connect(w.config(w.pg.WriterURL))
	if _, err := listener.Exec(t.Context(), "LISTEN news"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		text := strings.Repeat(fmt.Sprint(i), 7000)
		if _, err := sender.Exec(t.Context(), "SELECT pg_notify('news', $1)", text); err != nil {
			t.Fatal(err)
		}
		n, err := listener.WaitForNotification(t.Context())
		if err != nil || n.Payload != text {
			t.Fatalf("notification %d: %v", i, err)
		}
	}
}

func TestStaleGrantInTheOptionsIsRefusedByTheFence(t *testing.T) {
	t.Parallel()
	w := setup(t)
	admin := w.pg.Pool(t)
	for _, sql := range []string{"CREATE TABLE t (n int)", "GRANT ALL ON t TO fence_writer", "SELECT fence.protect('t', resource => 'a b/%')"} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	f := pgfence.New(testenv.PoolOf(t, w.pg.GatewayURL))
	arm := func(token fence.Token) fence.Grant {
		g := fence.Grant{Resource: "a b/%", Token: token, Seal: fence.NewSeal()}
		if err := f.Arm(t.Context(), fence.Arming{Resource: g.Resource, Token: token, SealHash: g.Seal.Hash(), Holder: "test"}); err != nil {
			t.Fatal(err)
		}
		return g
	}
	options := func(g fence.Grant) string {
		return fmt.Sprintf("-c fence.resource=%s -c fence.token=%s", fence.EscapeResource(g.Resource), g.Presented())
	}
	session := func(g fence.Grant) *pgx.Conn {
		cfg := w.config(w.pg.WriterURL)
		cfg.RuntimeParams["options"] = options(g)
		return w.connect(cfg)
	}
	first := arm(1)
	open := session(first)
	if _, err := open.Exec(t.Context(), "INSERT INTO t VALUES (1)"); err != nil {
		t.Fatalf("under the current grant: %v", err)
	}
	second := arm(2)
	if _, err := open.Exec(t.Context(), "INSERT INTO t VALUES (2)"); sqlState(err) != "ZF001" {
		t.Errorf("open session: %v, want ZF001", err)
	}
	if _, err := session(first).Exec(t.Context(), "INSERT INTO t VALUES (2)"); sqlState(err) != "ZF001" {
		t.Errorf("new session: %v, want ZF001", err)
	}
	out, err := w.psql(w.pg.WriterURL, options(first), "INSERT INTO t VALUES (3)")
	if err == nil || !strings.Contains(out, "ZF001") {
		t.Errorf("psql with the stale grant: %v %s", err, out)
	}
	if out, err := w.psql(w.pg.WriterURL, options(second), "INSERT INTO t VALUES (4); SELECT array_agg(n ORDER BY n) FROM t"); err != nil || !strings.Contains(out, "{1,4}") {
		t.Errorf("psql with the current grant: %v %s", err, out)
	}
}

// psql runs a command with the installed psql, through the relay.
func (w *world) psql(address, options, command string) (string, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "psql", "-X", "-A", "-t", "-v", "VERBOSITY=verbose", "-v", "ON_ERROR_STOP=1", "-c", command, w.url(address))
	cmd.Env = append(os.Environ(), "PGOPTIONS="+options)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestPsqlWorks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if out, err := w.psql(w.pg.WriterURL, "-c work_mem=5MB", "SHOW work_mem"); err != nil || out != "5MB\n" {
		t.Errorf("a setting in PGOPTIONS: %q, %v", out, err)
	}
	if out, err := w.psql(w.pg.URL, "", `\copy (SELECT generate_series(1, 3)) TO STDOUT`); err != nil || out != "1\n2\n3\n" {
		t.Errorf("\\copy: %q, %v", out, err)
	}
	if out, err := w.psql(strings.Replace(w.pg.URL, w.pg.Database, "another", 1), "", "SELECT 1"); err == nil || !strings.Contains(out, "is not served here") {
		t.Errorf("another database: %q, %v", out, err)
	}
	wrong := strings.Replace(w.pg.WriterURL, "@", "wrong@", 1)
	if out, err := w.psql(wrong, "", "SELECT 1"); err == nil || !strings.Contains(out, "password authentication failed") {
		t.Errorf("a wrong password: %q, %v", out, err)
	}
}
