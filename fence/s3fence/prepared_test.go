//go:build unix

package s3fence_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

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
