package pgfence_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

// Enforcing, refreshing and protecting again with a rule of the same form wait for writers only. A transaction that has
// read the table goes on, and meets the new guards.
func TestReplacedGuardsWaitForNoReader(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE plain (id int, by bigint); CREATE TABLE parted (id int, by bigint) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF parted FOR VALUES FROM (0) TO (10); GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC`)
	w.exec(t, fmt.Sprintf(`SELECT fence.protect('plain', resource => '%s', mode => 'report')`, orders))
	w.exec(t, fmt.Sprintf(`SELECT fence.protect('parted', per_row => '''%s'' || left(id::text, 0)', mode => 'report', stamp => 'by')`, orders))
	g := w.acquire(t, orders, 34)
	for _, table := range []string{"plain", "parted"} {
		for _, change := range []string{`fence.enforce('` + table + `')`, `fence.refresh('` + table + `')`, `fence.enforce('` + table + `')`} {
			allowed := begin(t, w.session(t), pgx.ReadCommitted, g)
			refused, err := w.session(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, tx := range []pgx.Tx{allowed, refused} {
				if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM `+table); err != nil {
					t.Fatal(err)
				}
			}
			owner := connect(t, w.pg.URL, "-c lock_timeout=2s")
			if _, err := owner.Exec(t.Context(), `SELECT `+change); err != nil {
				t.Fatalf("%s beside readers: %v", change, err)
			}
			insert := fmt.Sprintf(`INSERT INTO %s (id) VALUES (1)`, table)
			if _, err := allowed.Exec(t.Context(), insert); err != nil {
				t.Errorf("after %s: %v", change, err)
			}
			_, err = refused.Exec(t.Context(), insert)
			wantCode(t, err, "ZF002")
			_, _ = allowed.Rollback(t.Context()), refused.Rollback(t.Context())
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.uncovered`); n != 0 {
		t.Errorf("%d uncovered", n)
	}
}

// To drop a guard, fence waits for all readers and holds no weaker lock during the wait: a transaction that has read the
// table may write to it, without a deadlock.
func TestDroppedGuardsTakeTheStrongestLockFirst(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"protect": `fence.protect('work', resource => '` + orders + `')`, "unprotect": `fence.unprotect('work')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(t, fmt.Sprintf(`SELECT fence.protect('work', resource => '%s', stamp => 'token')`, orders))
			g := w.acquire(t, orders, 34)
			app := begin(t, w.session(t), pgx.ReadCommitted, g)
			if _, err := app.Exec(t.Context(), `SELECT count(*) FROM work`); err != nil {
				t.Fatal(err)
			}
			owner := connect(t, w.pg.URL)
			done := make(chan error, 1)
			go func() {
				_, err := owner.Exec(t.Context(), `SELECT `+change)
				done <- err
			}()
			const waits = `SELECT count(*) FROM pg_locks WHERE relation = 'work'::regclass AND NOT granted AND mode = 'AccessExclusiveLock'`
			testenv.Eventually(t, "it waits for the reader", func() bool { return value[int](t, w, waits) == 1 })
			if _, err := app.Exec(t.Context(), `INSERT INTO work (note) VALUES ('beside it')`); err != nil {
				t.Errorf("the reader writes: %v", err)
			}
			if err := app.Commit(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Errorf("%s: %v", change, err)
			}
		})
	}
}

// However a table was protected before, its guards are those of a table that is protected for the first time.
func TestReplacedGuardsAreThoseOfAFreshTable(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const made = `CREATE TABLE %[1]s (id int, by bigint, other bigint) PARTITION BY RANGE (id);
CREATE TABLE %[1]s_leaf PARTITION OF %[1]s FOR VALUES FROM (0) TO (10);
CREATE TABLE %[1]s_mid PARTITION OF %[1]s FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE TABLE %[1]s_low PARTITION OF %[1]s_mid FOR VALUES FROM (10) TO (20)`
	rules := []string{
		`resource => 'a'`, `under => 'a/', mode => 'report', stamp => 'by'`, `under => 'a/', stamp => 'by'`,
		`per_row => '''b/'' || id', mode => 'report'`, `per_row => '''b/'' || id', stamp => 'other'`,
	}
	guards := func(table string) []string {
		list := value[[]string](t, w, fmt.Sprintf(`SELECT array_agg(concat_ws(' ', t.tgenabled, regexp_replace(replace(pg_get_triggerdef(t.oid), '%[1]s', 'x'), '_?[0-9]+', 'N', 'g')))
 FROM pg_trigger t JOIN fence.family('%[1]s') f ON f = t.tgrelid`, table))
		slices.Sort(list)
		return list
	}
	fresh := make(map[string][]string)
	for i, rule := range rules {
		table := fmt.Sprintf("fresh%c", 'a'+i)
		w.exec(t, fmt.Sprintf(made, table))
		w.exec(t, fmt.Sprintf(`SELECT fence.protect('%s', %s)`, table, rule))
		fresh[rule] = guards(table)
	}
	w.exec(t, fmt.Sprintf(made, "again"))
	from := rules[0]
	w.exec(t, fmt.Sprintf(`SELECT fence.protect('again', %s)`, from))
	step := func(to string) {
		w.exec(t, fmt.Sprintf(`SELECT fence.protect('again', %s)`, to))
		if got := guards("again"); !slices.Equal(got, fresh[to]) {
			t.Errorf("from %s to %s:\n%s\nwant\n%s", from, to, strings.Join(got, "\n"), strings.Join(fresh[to], "\n"))
		}
		from = to
	}
	for i, one := range rules { // a walk from each rule to itself and to each other rule
		step(one)
		for _, other := range rules[i+1:] {
			step(other)
			step(one)
		}
		step(rules[(i+1)%len(rules)])
	}
}

// A trigger of another's that has a guard's name is not replaced.
func TestATriggerOfTheSameNameIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE mine (id int); CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER fence_guard AFTER INSERT ON mine EXECUTE FUNCTION mine()`)
	_, err := w.admin.Exec(t.Context(), `SELECT fence.protect('mine', resource => 'mine')`)
	if err == nil || !strings.Contains(err.Error(), "42710") {
		t.Errorf("got %v", err)
	}
}

// PostgreSQL releases the locks of a portal that fails inside a savepoint, its table's too. docs/fence.md has the query that
// lists such transactions.
func TestAnUnguardedWriteOfACursorOutlivesProtecting(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE plain (n int CHECK (n < 2)); GRANT ALL ON plain TO PUBLIC;
		CREATE FUNCTION writes(n int) RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO plain VALUES (n); RETURN n; END'`)
	session := dial(t, w.pg.WriterURL)
	session.script(t, failing(`DECLARE c CURSOR FOR SELECT writes(g) FROM generate_series(1, 2) g; FETCH c`, `FETCH c`), `SELECT 1`)

	owner := connect(t, w.pg.URL, "-c lock_timeout=2s")
	run(t, owner, `SELECT fence.protect('plain', resource => 'orders/1001')`)
	var query string
	for _, block := range sqlBlock.FindAllStringSubmatch(page(t, "fence.md"), -1) {
		if strings.HasPrefix(block[1], "SELECT 'process '") {
			query = strings.Replace(strings.TrimRight(block[1], ";\n"), "<time>", value[string](t, w, `SELECT now()::text`), 1)
		}
	}
	before := value[[]string](t, w, `SELECT ARRAY(`+query+`)`)
	if want := fmt.Sprintf("process %d", session.conn.PID); !slices.Contains(before, want) {
		t.Errorf("after protecting the query lists %q, want %q", before, want)
	}
	session.script(t, []string{"COMMIT", "!INSERT INTO plain VALUES (1)"}, `SELECT 1`)
	if n := value[int](t, w, `SELECT count(*) FROM plain`); n != 1 {
		t.Errorf("%d rows", n)
	}
	if after := value[[]string](t, w, `SELECT ARRAY(`+query+`)`); slices.Contains(after, fmt.Sprintf("process %d", session.conn.PID)) {
		t.Errorf("after COMMIT the query lists %q", after)
	}
}
