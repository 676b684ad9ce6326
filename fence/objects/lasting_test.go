//go:build unix

package objects_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/objects"
	"github.com/fencegate/fencegate/internal/migrate"
)

// standby names the synchronous standby that commits wait for: none of that name is connected. "" is none to wait for.
func (w *world) standby(name string) {
	w.t.Helper()
	w.exec("ALTER SYSTEM SET synchronous_standby_names = '" + name + "'")
	w.exec("SELECT pg_reload_conf()")
	// It is another process of the server that lets commits wait, and it may read its configuration later.
	eventually(w.t.(*testing.T), "commits wait for the standby, or no more", func() bool { return w.commitWaits() == (name != "") })
}

// commitWaits reports whether a COMMIT waits for the standby, or else that it is over.
func (w *world) commitWaits() bool {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = w.admin.Exec(ctx, "SELECT pg_logical_emit_message(true, 'test', 'a transaction that writes')")
	}()
	defer func() { cancel(); <-over }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return false
		case <-tick.C:
			if w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") > 0 {
				return true
			}
		}
	}
}

// A publication whose wait for the synchronous standby was cancelled is seen here, and a failover undoes it.
func TestTheOutcomeIsNotToldBeforeTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "fencegate-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // PostgreSQL's user enters it
		t.Fatal(err)
	}
	w := &world{t: t}
	server := w.serve(dir)
	t.Cleanup(func() { _ = server.Stop() })
	if err := migrate.Up(t.Context(), server.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	w.exec("SELECT objects.create_bucket('reports', -1)")
	g := w.acquire(report, 1)
	staged := w.record(g, name)
	tx := w.begin(pgx.ReadCommitted, g)
	if err := objects.Publish(t.Context(), tx, staged); err != nil {
		t.Fatal(err)
	}
	w.standby("missing")
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := tx.Commit(soon); err == nil {
		t.Fatal("COMMIT did not wait for the standby: this test shows nothing")
	}
	eventually(t, "it is published here", func() bool { return w.count("SELECT count(*) FROM objects.versions") == 1 })
	soon, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	wantErr(t, "before the standby has it", objects.Outcome(soon, w.writer, staged), fence.ErrUnknown)
	w.standby("")
	if err := objects.Outcome(t.Context(), w.writer, staged); err != nil {
		t.Errorf("when there is nothing to wait for: %v", err)
	}
}

// The grace of what is replaced counts from then, and not from when its transaction began: readers and standbys need all of it.
func TestWhatIsReplacedByALongTransactionGetsTheWholeGrace(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for doing, replace := range map[string]func(fence.Grant, pgx.Tx) error{
		"publish":   func(g fence.Grant, tx pgx.Tx) error { return objects.Publish(t.Context(), tx, w.record(g, name)) },
		"unpublish": func(_ fence.Grant, tx pgx.Tx) error { return objects.Remove(t.Context(), tx, bucket, name) },
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
