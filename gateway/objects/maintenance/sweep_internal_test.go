//go:build unix

package maintenance //nolint:testpackage // the limit of the scan's statement is inside

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

// unknowns is a store that lists so many old blobs.
type unknowns struct {
	blob.Store

	count int
}

func (s unknowns) All(context.Context) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		for range s.count {
			if !yield(blob.Info{ID: blob.NewID(), Changed: time.Now().Add(-48 * time.Hour)}, nil) {
				return
			}
		}
	}
}

// A call reads all versions, of which there may be millions.
func TestAScanComparesItsUnknownBlobsWithTheVersionsOnce(t *testing.T) {
	t.Parallel()
	u := newUploads(t)
	for _, sql := range []string{
		"CREATE SEQUENCE public.calls", "GRANT USAGE ON public.calls TO PUBLIC",
		"ALTER FUNCTION objects.adopt(uuid[], boolean) RENAME TO adopt_these",
		`CREATE FUNCTION objects.adopt(p_blobs uuid[], p_dry boolean, OUT adopted integer, OUT named integer) LANGUAGE sql SECURITY DEFINER AS $$
SELECT nextval('public.calls'); SELECT * FROM objects.adopt_these(p_blobs, p_dry) $$`,
	} {
		if _, err := u.admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s := sweeper{db: u.keeper.db, store: unknowns{u.store, 2*sweepBatch + 1}, limit: adoptLimit}
	if err := s.adopt(t.Context()); err != nil || s.swept != (Swept{Adopted: 2*sweepBatch + 1}) {
		t.Errorf("%+v, %v", s.swept, err)
	}
	var calls int
	if err := u.admin.QueryRow(t.Context(), "SELECT last_value FROM public.calls").Scan(&calls); err != nil || calls != 1 {
		t.Errorf("%d calls, %v; want 1", calls, err)
	}
}

func TestAScanMayTakeLongerThanOtherStatements(t *testing.T) {
	t.Parallel()
	u := newUploads(t)
	tx, err := u.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), "LOCK TABLE objects.versions IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	s := sweeper{db: u.keeper.db, store: unknowns{u.store, 1}, limit: time.Second}
	if err := s.adopt(t.Context()); err == nil || errors.Is(err, objects.ErrDatabaseAway) || !strings.Contains(err.Error(), "took longer than 1s to compare 1 unknown blobs") {
		t.Errorf("beyond its own limit: got %v", err)
	}
	s.db, s.limit = s.db.Within(5*time.Second), adoptLimit
	done := make(chan error, 1)
	go func() { done <- s.adopt(t.Context()) }()
	testenv.Eventually(t, "the scan has waited for longer than the limit of others", func() bool {
		var long bool
		err := u.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%objects.adopt%'
			AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '5500 ms')`).Scan(&long)
		return err == nil && long
	})
	if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		t.Fatal(err)
	}
	if err := <-done; err != nil || s.swept.Adopted != 1 {
		t.Errorf("%+v, %v", s.swept, err)
	}
}
