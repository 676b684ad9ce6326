package pgfence_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// testServer is a PostgreSQL server that the test may configure and crash.
type testServer struct {
	*pgserver.Server
	dir string
}

func startServer(t *testing.T) *testServer {
	t.Helper()
	s := &testServer{dir: testenv.ServerDir(t)}
	s.start(t)
	if err := migrate.Up(t.Context(), s.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *testServer) start(t *testing.T) {
	t.Helper()
	s.Server = testenv.OwnPostgres(t, pgserver.Config{Dir: s.dir, Fast: true, Settings: map[string]string{"autovacuum": "off"}})
}

// world is the database of the server, with the table `work`.
func (s *testServer) world(t *testing.T) world {
	t.Helper()
	w := world{admin: poolWith(t, s.URL("postgres"), func(*pgxpool.Config) {})}
	w.fence = pgfence.New(poolWith(t, s.URL("postgres"), pgfence.Configure))
	pgfence.GiveTime(w.fence)
	w.writer = poolWith(t, s.URL("postgres"), pgfence.Configure)
	w.exec(t, `CREATE TABLE IF NOT EXISTS work (id bigserial PRIMARY KEY, token bigint, note text)`)
	w.exec(t, `SELECT fence.protect('work', resource => $1)`, orders)
	return w
}

// loseCommit runs a transaction whose COMMIT is not answered, on its own connection.
func loseCommit(t *testing.T, address string, g fence.Grant, arrives bool) error {
	t.Helper()
	var line wire
	pool := line.pool(t, address, pgx.QueryExecModeCacheStatement)
	err := pgfence.InTx(t.Context(), pool, g, func(tx pgx.Tx) error {
		err := write(t.Context(), tx, g.Token)
		if arrives {
			line.lose.Store(1)
		} else {
			line.drop.Store(1)
		}
		return err
	})
	if !errors.Is(err, fence.ErrUnknown) {
		t.Fatalf("got %v", err)
	}
	return err
}

func outcome(t *testing.T, db pgfence.Beginner, err error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return pgfence.Outcome(ctx, db, err)
}

func TestTheOutcomeOfALostCommitCanBeFound(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	if err := outcome(t, w.writer, loseCommit(t, w.pg.WriterURL, g, true)); err != nil || rows(t, w) != 1 {
		t.Errorf("committed: %v, %d rows", err, rows(t, w))
	}
	err := outcome(t, w.session(t), loseCommit(t, w.pg.WriterURL, g, false))
	if !errors.Is(err, pgfence.ErrNotCommitted) || errors.Is(err, fence.ErrUnknown) || rows(t, w) != 1 {
		t.Errorf("not committed: %v, %d rows", err, rows(t, w))
	}
	for _, other := range []error{nil, errors.New("another"), fence.ErrStale} {
		if err := outcome(t, w.writer, other); !errors.Is(err, other) {
			t.Errorf("%v became %v", other, err)
		}
	}
}

func TestInTxResolvesALostCommitByItself(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	for _, arrives := range []bool{true, false} {
		var line wire
		pool := line.pool(t, w.pg.WriterURL, pgx.QueryExecModeCacheStatement)
		ctx, cancel := context.WithCancel(t.Context())
		opts := pgfence.TxOptions{Resolve: time.Minute}
		before := rows(t, w)
		err := pgfence.InTxAll(ctx, pool, opts, []fence.Grant{g}, func(tx pgx.Tx) error {
			err := write(ctx, tx, g.Token)
			if arrives {
				line.lose.Store(1)
			} else {
				line.drop.Store(1)
			}
			return err
		})
		cancel()
		if (err == nil) != arrives || !arrives && !errors.Is(err, pgfence.ErrNotCommitted) || (rows(t, w) == before+1) != arrives {
			t.Errorf("arrives %v: %v", arrives, err)
		}
	}
}

// While the transaction still runs, its outcome is open.
func TestTheOutcomeWaitsForATransactionThatStillRuns(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.session(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var unknown pgfence.UnknownError
	unknown.Err = errors.New("lost")
	if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text, fence.server_run()`).Scan(&unknown.XID, &unknown.Run); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := pgfence.Outcome(ctx, w.writer, &unknown); !errors.Is(err, fence.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it runs: %v", err)
	}
	found := make(chan error, 1)
	go func() { found <- outcome(t, w.writer, &unknown) }()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-found; err != nil {
		t.Errorf("committed in between: %v", err)
	}
	for name, run := range map[string]string{
		"another system": "1" + unknown.Run, "another timeline": strings.Replace(unknown.Run, "/00000001/", "/00000002/", 1),
		"another run": unknown.Run + "1",
	} {
		if err := outcome(t, w.writer, &pgfence.UnknownError{XID: unknown.XID, Run: run, Err: unknown.Err}); !errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// After a crash PostgreSQL reuses the ID of a lost transaction: a commit under that ID belongs to another
// transaction.
func TestTheOutcomeAfterACrashOrARestart(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	w := s.world(t)
	g := w.acquire(t, orders, 34)
	done := loseCommit(t, s.URL("postgres"), g, true)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	w = s.world(t)
	if err := outcome(t, w.writer, done); err != nil {
		t.Errorf("committed, then a clean restart: %v", err)
	}

	lost := s.loseInCrash(t)
	w = s.world(t)
	if err := outcome(t, w.writer, lost); !errors.Is(err, pgfence.ErrNotCommitted) && !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("lost in a crash: %v", err)
	}
	if !w.commitsAs(t, lost.XID) {
		t.Fatal("the test proves nothing: its number was not given out again")
	}
	if err := outcome(t, w.writer, lost); !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("another one committed under its number: %v", err)
	}
	if err := outcome(t, w.writer, done); !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("committed, then a crash: %v", err)
	}
}

// After a reset of the statistics the server looks restarted. The outcome is then unknown, but never wrong.
func TestTheOutcomeWhileStatisticsAreReset(t *testing.T) {
	t.Parallel()
	w := startServer(t).world(t)
	tx, err := w.writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lost pgfence.UnknownError
	if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text, fence.server_run()`).Scan(&lost.XID, &lost.Run); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `SELECT pg_stat_reset_shared('bgwriter')`)
	if got := value[string](t, w, `SELECT fence.outcome($1, $2)`, lost.XID, lost.Run); got != "in progress" {
		t.Errorf("while it runs: %s", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, w, `SELECT fence.outcome($1, $2)`, lost.XID, lost.Run); got != "unknown" {
		t.Errorf("committed: %s", got)
	}
}

// InTx reads the identity of the server's run in each transaction. A session reads the part in a file once; asking
// for an outcome reads it again.
func TestTheFileIsReadOnceInASession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	lost := loseCommit(t, w.pg.WriterURL, g, true)
	conn := w.session(t)
	runOf := func(conn *pgx.Conn) (run string) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT fence.server_run()`).Scan(&run); err != nil {
			t.Fatal(err)
		}
		return run
	}
	before := runOf(conn)
	if _, err := conn.Exec(t.Context(), `SET fence.system = 'made up'`); err != nil {
		t.Fatal(err)
	}
	if err := outcome(t, conn, lost); err != nil {
		t.Errorf("a session that made a system up: %v", err)
	}
	w.exec(t, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`)
	if after := runOf(conn); after != before {
		t.Errorf("the file is read again: %s, then %s", before, after)
	}
	if other := runOf(w.session(t)); other == before {
		t.Errorf("the test proves nothing: %s", other)
	}
}

// loseInCrash crashes and restarts the server during a transaction of which nothing reached the disk.
func (s *testServer) loseInCrash(t *testing.T) *pgfence.UnknownError {
	t.Helper()
	conn := connect(t, s.URL("postgres"))
	if _, err := conn.Exec(t.Context(), `CHECKPOINT`); err != nil {
		t.Fatal(err)
	}
	die := world{admin: testenv.PoolOf(t, s.URL("postgres"))}.halt(t, "checkpointer", "background writer") // they log the next ID
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lost := &pgfence.UnknownError{Err: errors.New("lost")}
	if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text, fence.server_run()`).Scan(&lost.XID, &lost.Run); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	die()
	s.start(t)
	return lost
}

// commitsAs commits transactions and reports whether one of them got this ID.
func (w world) commitsAs(t *testing.T, xid string) bool {
	t.Helper()
	for range 20 {
		w.exec(t, `SELECT pg_current_xact_id()`)
	}
	return value[string](t, w, `SELECT pg_xact_status($1::text::xid8)`, xid) == "committed"
}
