//go:build unix

package s3fence_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/gateway/objects"
)

// remove removes the object and the rows, in one transaction under the grant.
func (w *world) remove(level pgx.TxIsoLevel, g fence.Grant) error {
	return pgfence.InTxWith(w.t.Context(), w.writer, pgx.TxOptions{IsoLevel: level}, g, func(tx pgx.Tx) error {
		if _, err := tx.Exec(w.t.Context(), "DELETE FROM rows"); err != nil {
			return err
		}
		return s3fence.Remove(w.t.Context(), tx, bucket, name)
	})
}

func TestRowsAndFileGoTogether(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for i, level := range levels {
		old := w.acquire(report, fence.Token(2*i+1))
		if err := w.publish(level, old, w.stage(old, name, "text")); err != nil {
			t.Fatal(err)
		}
		g := w.acquire(report, fence.Token(2*i+2))
		wantErr(t, "stale", w.remove(level, old), fence.ErrStale)
		wantErr(t, "another resource", w.remove(level, w.acquire("reports/x", fence.Token(i+1))), fence.ErrWrongResource)
		tx := w.begin(level)
		wantErr(t, "no grant", s3fence.Remove(t.Context(), tx, bucket, name), fence.ErrNoGrant)
		tx = w.begin(level, g)
		if err := s3fence.Remove(t.Context(), tx, bucket, name); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.holds("refused and rolled back", "text", 1)
		if err := w.remove(level, g); err != nil {
			t.Fatal(err)
		}
		w.holds("removed", "", 0)
		if err := w.remove(level, g); err != nil {
			t.Errorf("what is not there: %v", err)
		}
		w.consistent()
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE deletion AND token = 2 AND holder = 'worker' AND resource = $1", report); n != 2 {
		t.Errorf("%d deletions are recorded", n)
	}
}

func TestARemovalIsADeletionAsOverS3(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	g := w.acquire(report, 1)
	staged := w.stage(g, name, "text")
	if err := w.publish(pgx.ReadCommitted, g, staged); err != nil {
		t.Fatal(err)
	}
	unpublish := func(g fence.Grant, sql string, args ...any) (was bool, err error) {
		err = pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT fence.unpublish("+sql+")", args...).Scan(&was)
		})
		return was, err
	}
	_, err := unpublish(g, "'reports', $1, if_match => 'other'", name)
	wantState(t, "another ETag", err, "ZO002")
	_, err = unpublish(g, "'reports', $1, if_match => '!other'", name)
	wantState(t, "what is no ETag", err, "22023")
	if was, err := unpublish(g, "'reports', $1, if_match => $2", name, staged.ETag); !was || err != nil {
		t.Errorf("%v, %v", was, err)
	}
	if was, err := unpublish(g, "'reports', $1", name); was || err != nil {
		t.Errorf("%v, %v", was, err)
	}
	w.holds("removed", "", 1)
	w.exec("SELECT objects.restore_version(gen_random_uuid(), 'reports', $1, $2::text::uuid, $3, 1, NULL, NULL, NULL, false)", name, staged.ID, report)
	w.holds("restored", "text", 1)
	for _, key := range []string{"", strings.Repeat("k", 1025)} {
		_, err = unpublish(g, "'reports', $1", key)
		wantState(t, "no key", err, "22023")
	}
	_, err = unpublish(g, "'nowhere', 'x'")
	wantState(t, "no bucket", err, "ZO001")
	_, err = unpublish(g, "'reports', '2026-11.cs*'")
	wantState(t, "a pattern", err, "ZF003")
	_, err = unpublish(g, "'reports', NULL")
	if err == nil {
		t.Error("NULL is a key")
	}
}

func TestARemovalNeedsWhatTheRuleAsksFor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.acquire("anything", 1)
	w.rule(objects.NoRule())
	for _, level := range levels {
		tx := w.begin(level)
		wantErr(t, "none, and no lease", s3fence.Remove(t.Context(), tx, bucket, name), fence.ErrNoGrant)
		tx = w.begin(level, lease)
		if err := errors.Join(s3fence.Remove(t.Context(), tx, bucket, name), tx.Commit(t.Context())); err != nil {
			t.Errorf("none, and any lease: %v", err)
		}
	}
	w.rule(objects.KeyRule().Monotone())
	g := w.acquire(report, 1)
	tx := w.begin(pgx.ReadCommitted, g)
	wantErr(t, "monotone takes no seal", s3fence.Remove(t.Context(), tx, bucket, name), fence.ErrNeverIssued)
	w.exec("INSERT INTO fence.unsealed VALUES ('reports/minted')")
	tx = w.begin(pgx.ReadCommitted, fence.Grant{Resource: "reports/minted", Token: 9})
	if err := errors.Join(s3fence.Remove(t.Context(), tx, bucket, "minted"), tx.Commit(t.Context())); err != nil { // frees the rule
		t.Error(err)
	}
	w.rule(objects.KeyRule())
	for _, driver := range []string{"pgx", "postgres"} {
		err := sqlfence.InTx(t.Context(), openSQL(t, driver, withoutTLS(w.pg.WriterURL)), g, func(tx *sql.Tx) error { return s3fence.RemoveSQL(t.Context(), tx, bucket, name) })
		if err != nil {
			t.Error(err)
		}
	}
	wantErr(t, "pgx", s3fence.Remove(t.Context(), nil, bucket, name), fence.ErrInvalid)
	wantErr(t, "database/sql", s3fence.RemoveSQL(t.Context(), nil, bucket, name), fence.ErrInvalid)
}
