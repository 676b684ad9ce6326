package pgfence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// Rows of a partition that is attached later have no trigger of their own until the table is protected again;
// fence.uncovered names it. With event triggers it is guarded at once, or refused.
func TestAPartitionThatIsAttachedLaterIsNamedOrGuarded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE m (id int) PARTITION BY LIST (id); SELECT fence.protect('m', per_row => $$'docs/' || id$$)`)
	attach := func(id int, protected bool) error {
		w.exec(t, fmt.Sprintf(`CREATE TABLE m%d (id int)`, id))
		if protected {
			w.exec(t, fmt.Sprintf(`SELECT fence.protect('m%d', per_row => $$'docs/' || id$$)`, id))
		}
		_, err := w.admin.Exec(t.Context(), fmt.Sprintf(`ALTER TABLE m ATTACH PARTITION m%[1]d FOR VALUES IN (%[1]d)`, id))
		return err
	}
	if err := errors.Join(attach(1, false), attach(2, true)); err != nil {
		t.Fatal(err)
	}
	want := "m1: is a partition or child of a protected table and has no guard; m2: guard fence_guard is disabled or does not cover every kind of write"
	if got := uncovered(t, w); got != want {
		t.Errorf("uncovered: %s", got)
	}
	w.exec(t, `SELECT fence.protect('m', per_row => $$'docs/' || id$$); SELECT fence.install_event_triggers()`)
	if err := attach(3, false); err != nil {
		t.Error(err)
	}
	wantCode(t, attach(4, true), "55000")
	if got := uncovered(t, w); got != "" {
		t.Errorf("uncovered: %s", got)
	}
}

// Rows that MERGE moves are judged one by one, also below a partition with subpartitions, and where no rows are
// counted.
func TestWhatMergeMovesBelowAPartitionIsJudged(t *testing.T) {
	t.Parallel()
	for _, counts := range []string{"on", "off"} {
		t.Run("track_counts "+counts, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(t, `CREATE TABLE m (id int, kind int) PARTITION BY LIST (id); CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1) PARTITION BY LIST (kind);
				CREATE TABLE m1a PARTITION OF m1 FOR VALUES IN (1); CREATE TABLE m1b PARTITION OF m1 FOR VALUES IN (2); CREATE TABLE m2 PARTITION OF m FOR VALUES IN (2);
				INSERT INTO m VALUES (1, 1), (2, 1); SELECT fence.protect('m', per_row => $$'docs/' || id$$)`)
			one, two := w.acquire(t, "docs/1", 1), w.acquire(t, "docs/2", 1)
			merge := func(g fence.Grant, table, set string) error {
				tx := begin(t, connect(t, w.pg.URL, "-c track_counts="+counts), pgx.ReadCommitted, g)
				defer func() { _ = tx.Rollback(t.Context()) }()
				_, err := tx.Exec(t.Context(), `MERGE INTO `+table+` x USING (VALUES (1)) s(k) ON x.id = s.k WHEN MATCHED THEN UPDATE SET `+set)
				return err
			}
			wantCode(t, merge(two, "m", "id = 2"), "ZF004")
			wantCode(t, merge(two, "m", "kind = 2"), "ZF004")
			wantCode(t, merge(two, "m1", "kind = 2"), "ZF004")
			wantCode(t, merge(one, "m", "id = 2"), "ZF004")
			if err := errors.Join(merge(one, "m", "kind = 2"), merge(one, "m1", "kind = 2")); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without fence.moving only the statement's guard is left, and such a MERGE passes it. So the tests above depend on
// fence.moving.
func TestWithoutMovingAMergeGoesUnjudged(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE m (id int) PARTITION BY LIST (id); CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1); CREATE TABLE m2 PARTITION OF m FOR VALUES IN (2);
		INSERT INTO m VALUES (1); SELECT fence.protect('m', per_row => $$'docs/' || id$$)`)
	two := w.acquire(t, "docs/2", 1)
	conn := connect(t, w.pg.URL)
	const merge = `MERGE INTO m x USING (VALUES (1)) s(k) ON x.id = s.k WHEN MATCHED THEN UPDATE SET id = 2`
	wantUnder(t, conn, two, merge, "ZF004")
	w.exec(t, `CREATE OR REPLACE FUNCTION fence.moving() RETURNS boolean LANGUAGE sql VOLATILE RETURN false`)
	wantUnder(t, conn, two, merge, "")
}
