package pgfence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// refused is the count of fence.protected for a table.
func (w world) refused(t *testing.T, table string) int {
	t.Helper()
	return value[int](t, w, `SELECT refused FROM fence.protected WHERE relation = $1::text::regclass`, table)
}

// Every refusal is counted, although its transaction is rolled back, and nothing else is.
func TestRefusalsAreCountedPerTable(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.more(t)
	stale, current := w.acquire(t, orders, 34), w.acquire(t, orders, 35)
	other := w.acquire(t, "other", 1)
	conn := connect(t, w.pg.WriterURL)
	inserts := map[string]string{
		"work": `INSERT INTO work (token) VALUES (1)`, "below": `INSERT INTO below VALUES (1001)`, "each": `INSERT INTO each VALUES (1001)`,
	}
	want := map[string]int{}
	for table, insert := range inserts {
		for _, g := range []fence.Grant{stale, {}, other} {
			wantUnder(t, conn, g, insert, map[fence.Grant]string{stale: "ZF001", other: "ZF004"}[g]+map[bool]string{true: "ZF002"}[g == fence.Grant{}])
			want[table]++
		}
		wantUnder(t, conn, current, insert, "")
	}
	wantUnder(t, conn, current, `INSERT INTO each VALUES (7)`, "ZF004") // only the row shows it
	want["each"]++
	// A writer may continue after a refusal: the rollback to a savepoint does not undo the count.
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		for range 10 {
			if err := pgx.BeginFunc(t.Context(), tx, func(inner pgx.Tx) error {
				_, err := inner.Exec(t.Context(), inserts["work"])
				return err
			}); err == nil {
				t.Error("a write without a grant passed")
			}
			want["work"]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for table, n := range want {
		if got := w.refused(t, table); got != n {
			t.Errorf("%s: %d refusals counted, want %d", table, got, n)
		}
	}
}

// Partitions and children can be written directly, too.
func TestEachPartitionCountsItsRefusals(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE days (day int) PARTITION BY LIST (day)`)
	w.exec(t, `CREATE TABLE day1 PARTITION OF days FOR VALUES IN (1)`)
	w.exec(t, `GRANT ALL ON days, day1 TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('days', resource => 'days')`)
	conn := connect(t, w.pg.WriterURL)
	wantUnder(t, conn, fence.Grant{}, `INSERT INTO days VALUES (1)`, "ZF002")
	wantUnder(t, conn, fence.Grant{}, `INSERT INTO day1 VALUES (1)`, "ZF002")
	wantUnder(t, conn, fence.Grant{}, `INSERT INTO day1 VALUES (1)`, "ZF002")
	if all, one := w.refused(t, "days"), w.refused(t, "day1"); all != 1 || one != 2 {
		t.Errorf("counted %d and %d, want 1 and 2", all, one)
	}
	w.exec(t, `SELECT fence.unprotect('days')`)
	if n := value[int](t, w, `SELECT count(*) FROM pg_class WHERE relname LIKE 'refused\_%'`); n != 1 { // of work
		t.Errorf("%d counters", n)
	}
}
