//go:build unix

package s3fence_test

import (
	"context"
	"crypto/rand"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// After a crash a transaction's ID does not tell its outcome, because it may be reused. The stage does.
func TestTheOutcomeIsKnownAfterACrash(t *testing.T) {
	t.Parallel()
	w, dir := &world{t: t}, testenv.ServerDir(t)
	server := w.serve(dir)
	if err := migrate.Up(t.Context(), server.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	w.exec(`CREATE TABLE rows (note text); SELECT fence.protect('rows', under => 'reports/'), objects.create_bucket('reports', -1)`)
	g := w.acquire(report, 1)
	answered, lost := w.record(g, name), w.record(g, name)

	config, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off" // publishing overrides it
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		return &cut{Conn: conn, arrives: true}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	wantErr(t, "the answer is lost", publishOn(t.Context(), pool, pgx.ReadCommitted, g, answered), fence.ErrUnknown)
	if err := s3fence.Outcome(t.Context(), w.writer, answered); err != nil { // it has arrived
		t.Fatal(err)
	}
	open := w.begin(pgx.ReadCommitted, g)
	if err := s3fence.Publish(t.Context(), open, lost); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}

	w.serve(dir)
	if err := s3fence.Outcome(t.Context(), w.writer, answered); err != nil {
		t.Errorf("committed before the crash: %v", err)
	}
	wantErr(t, "again", w.publish(pgx.ReadCommitted, g, answered), s3fence.ErrPublished)
	wantErr(t, "lost in the crash", s3fence.Outcome(t.Context(), w.writer, lost), fence.ErrNotCommitted)
	if err := w.publish(pgx.ReadCommitted, g, lost); err != nil {
		t.Error(err)
	}
	if n := w.count("SELECT count(*) FROM rows"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	w.consistent()
}

// serve starts a PostgreSQL server for this test and connects to it.
func (w *world) serve(dir string) *pgserver.Server {
	w.t.Helper()
	server := testenv.OwnPostgres(w.t, pgserver.Config{Dir: dir, Fast: true})
	w.admin = testenv.PoolOf(w.t, server.URL("postgres"))
	w.writer = w.admin
	return server
}

// A prepared transaction publishes at COMMIT PREPARED, however late that comes, and not before.
func TestAPreparedPublicationIsPublishedByItsSecondPhase(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	staged, hash := w.stage(g, name, "prepared"), fence.NewSeal().Hash()
	w.age("25 hours") // a sweep would delete it
	tx := w.begin(pgx.ReadCommitted, g)
	if _, err := tx.Exec(t.Context(), "INSERT INTO rows VALUES ('x')"); err != nil {
		t.Fatal(err)
	}
	if err := s3fence.Publish(t.Context(), tx, staged); err != nil {
		t.Fatal(err)
	}
	gid := rand.Text()
	if _, err := tx.Exec(t.Context(), "PREPARE TRANSACTION '"+gid+"'"); err != nil {
		t.Fatal(err)
	}
	w.holds("before COMMIT PREPARED", "", 0)
	if got, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil || got != (maintenance.Swept{}) {
		t.Errorf("swept %+v, %v", got, err)
	}
	outcome := make(chan error, 1)
	go func() { outcome <- s3fence.Outcome(t.Context(), w.writer, staged) }()
	for w.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 0 {
		select {
		case err := <-outcome:
			t.Fatalf("the outcome before the second phase: %v", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	w.exec("SELECT fence.raise($1, 2, $2, 'next')", report, hash)
	if _, err := w.admin.Exec(t.Context(), "SELECT fence.drain($1, 2, $2)", report, hash); err == nil || !strings.Contains(err.Error(), gid) {
		t.Errorf("acquired over it: %v", err)
	}
	w.exec("COMMIT PREPARED '" + gid + "'")
	w.holds("after COMMIT PREPARED", "prepared", 1)
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	w.acquire(report, 3)
	w.consistent()
}

// If a publication's wait for the synchronous standby was cancelled, it is visible on the primary, but a failover
// loses it. So the outcome waits for the standby.
func TestTheOutcomeIsNotToldBeforeTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	w := &world{t: t}
	server := w.serve(testenv.ServerDir(t))
	if err := migrate.Up(t.Context(), server.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	w.exec("SELECT objects.create_bucket('reports', -1)")
	g := w.acquire(report, 1)
	staged := w.record(g, name)
	tx := w.begin(pgx.ReadCommitted, g)
	if err := s3fence.Publish(t.Context(), tx, staged); err != nil {
		t.Fatal(err)
	}
	testenv.SynchronousStandby(w.t, w.admin, "missing")
	pid := tx.Conn().PgConn().PID()
	committing, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	committed := make(chan error, 1)
	go func() { committed <- tx.Commit(committing) }()
	testenv.Eventually(t, "COMMIT waits for the standby", func() bool {
		return len(committed) > 0 || w.count("SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'", pid) == 1
	})
	giveUp()
	if err := <-committed; err == nil {
		t.Fatal("COMMIT did not wait for the standby: this test shows nothing")
	}
	testenv.Eventually(t, "it is published here", func() bool { return w.count("SELECT count(*) FROM objects.versions") == 1 })
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	wantErr(t, "before the standby has it", s3fence.Outcome(soon, w.writer, staged), fence.ErrUnknown)
	testenv.SynchronousStandby(w.t, w.admin, "")
	if err := s3fence.Outcome(t.Context(), w.writer, staged); err != nil {
		t.Errorf("when there is nothing to wait for: %v", err)
	}
}

// The grace period of replaced bytes begins at the replacement, not at the start of its transaction, because readers
// and standbys need all of it.
func TestWhatIsReplacedByALongTransactionGetsTheWholeGrace(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for doing, replace := range map[string]func(fence.Grant, pgx.Tx) error{
		"publish":   func(g fence.Grant, tx pgx.Tx) error { return s3fence.Publish(t.Context(), tx, w.record(g, name)) },
		"unpublish": func(_ fence.Grant, tx pgx.Tx) error { return s3fence.Remove(t.Context(), tx, bucket, name) },
	} {
		g := w.acquire(report, fence.Token(w.count("SELECT coalesce(max(token), 0)::int FROM fence.resources")+1))
		if err := w.publish(pgx.ReadCommitted, g, w.record(g, name)); err != nil {
			t.Fatal(err)
		}
		w.exec("DELETE FROM objects.blobs WHERE state = 'superseded'")
		tx := w.begin(pgx.ReadCommitted, g)
		var before time.Time
		if err := w.admin.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before); err != nil {
			t.Fatal(err)
		}
		if err := replace(g, tx); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'superseded' AND changed_at >= $1", before); n != 1 {
			t.Errorf("%s: the grace of what it replaced began before it was replaced", doing)
		}
	}
}
