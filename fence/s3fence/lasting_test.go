//go:build unix

package s3fence_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

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
