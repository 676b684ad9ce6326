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

// A function of another language, such as PL/Perl, can stop INSERT ... RETURNING behind a row: no trigger after the statement
// fires, and the row stays. Here the language is one by name only, and the triggers after the statement are dropped instead.
func TestRowsOfAStatementThatIsStoppedAreJudged(t *testing.T) {
	t.Parallel()
	const stopped = `DROP TRIGGER fence_insert ON %[1]s; DROP TRIGGER fence_update ON %[1]s; DROP TRIGGER fence_delete ON %[1]s`
	for _, table := range []string{"docs", "m1"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(t, `CREATE LANGUAGE stops HANDLER plpgsql_call_handler; CREATE TABLE docs (id int); INSERT INTO docs VALUES (1);
				CREATE TABLE m (id int) PARTITION BY LIST (id); CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1, 2); INSERT INTO m VALUES (1);
				SELECT fence.protect('docs', per_row => $$'docs/' || id$$), fence.protect('m', per_row => $$'docs/' || id$$)`)
			w.exec(t, fmt.Sprintf(stopped, table))
			one, two := w.acquire(t, "docs/1", 1), w.acquire(t, "docs/2", 1)
			for _, sql := range []string{`INSERT INTO %s VALUES (1)`, `UPDATE %s SET id = 2`, `UPDATE %s SET id = 1`, `DELETE FROM %s`} {
				sql = fmt.Sprintf(sql, table)
				wantUnder(t, connect(t, w.pg.URL), two, sql, "ZF004")
			}
			wantUnder(t, connect(t, w.pg.URL), one, fmt.Sprintf(`UPDATE %s SET id = 1`, table), "")
		})
	}
}

// A stamp is verified for each row, too: another trigger may have written to the column.
func TestStampsOfAStatementThatIsStoppedAreJudged(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE LANGUAGE stops HANDLER plpgsql_call_handler; CREATE TABLE docs (id int, token bigint); SELECT fence.protect('docs', under => 'docs/', stamp => 'token');
		CREATE FUNCTION forges() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.token := new.id; RETURN new; END';
		CREATE TRIGGER forges BEFORE INSERT OR UPDATE ON docs FOR EACH ROW EXECUTE FUNCTION forges(); DROP TRIGGER fence_insert ON docs; DROP TRIGGER fence_update ON docs`)
	g := w.acquire(t, "docs/1", 34)
	wantUnder(t, connect(t, w.pg.URL), g, `INSERT INTO docs VALUES (34)`, "")
	wantUnder(t, connect(t, w.pg.URL), g, `INSERT INTO docs VALUES (33)`, "ZF003")
}

// fence.uncovered names a language that was added after the protection. Protecting again adds the missing trigger.
func TestALanguageThatComesLaterIsNamed(t *testing.T) {
	t.Parallel()
	for _, events := range []string{"", "SELECT fence.install_event_triggers()"} {
		t.Run(events, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			const protect = `SELECT fence.protect('docs', per_row => $$'docs/' || id$$, stamp => 'token'), fence.protect('notes', under => 'docs/', stamp => 'token')`
			w.exec(t, `CREATE TABLE docs (id int, token bigint); CREATE TABLE notes (id int, token bigint); `+protect)
			w.exec(t, events)
			w.exec(t, `CREATE LANGUAGE stops HANDLER plpgsql_call_handler`)
			const reason = ": guard fence_guard is disabled or does not cover every kind of write, or another language was added, which can stop a statement: protect it again"
			want := "docs" + reason + "; notes" + reason
			if got := uncovered(t, w); got != want {
				t.Errorf("uncovered: %s", got)
			}
			w.exec(t, protect)
			if got := uncovered(t, w); got != "" {
				t.Errorf("protected again, uncovered: %s", got)
			}
			w.exec(t, `DROP LANGUAGE stops`)
			if got := uncovered(t, w); got != "" {
				t.Errorf("without the language, uncovered: %s", got)
			}
			w.exec(t, protect)
			if n := value[int](t, w, `SELECT count(*) FROM pg_trigger WHERE tgname = 'fence_moved'`); n != 0 {
				t.Errorf("%d triggers for each row stay", n)
			}
		})
	}
}
