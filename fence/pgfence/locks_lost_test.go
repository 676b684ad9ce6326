package pgfence_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

// lostLock is a transaction that writes under a grant, then fails in a subtransaction and goes on. Between that failure
// and COMMIT no one may be able to arm the resource at once.
type lostLock struct {
	name   string
	steps  []string // of [portals.step]; "!" in front: it fails. {address} is the session's own, for dblink
	state  string   // the query of the locks, if not the session's own
	commit string   // default: COMMIT
	held   bool     // also without the subtransaction around the lock
}

// Cursors whose second row fails, after the first one has written.
const (
	declared  = `DECLARE c CURSOR FOR SELECT w('insert', g, 2, 'error') FROM generate_series(1, 2) g`
	cancelled = `DECLARE c CURSOR FOR SELECT w('insert', g, 2, 'cancel') FROM generate_series(1, 2) g`
)

// failing are the steps of a transaction whose second step fails, in a savepoint.
func failing(open, second string) []string {
	return append(strings.Split("BEGIN; "+open+"; SAVEPOINT s", "; "), "!"+second, "ROLLBACK TO s")
}

func lostLocks() []lostLock {
	const limit = "\\execute p 1"
	bound := func(sql string) []string { return failing(`\bind p `+sql+"; "+limit, limit) }
	all := []lostLock{
		{name: "FETCH", steps: failing(declared+"; FETCH c", "FETCH c")},
		{name: "FETCH of several rows", steps: failing(declared+"; FETCH 1 FROM c", "FETCH ALL FROM c")},
		{name: "MOVE", steps: failing(declared+"; MOVE c", "MOVE c")},
		{name: "FETCH, then MOVE", steps: failing(declared+"; FETCH c", "MOVE c")},
		{name: "FETCH at REPEATABLE READ", steps: append([]string{"BEGIN ISOLATION LEVEL REPEATABLE READ"}, failing(declared+"; FETCH c", "FETCH c")[1:]...)},
		{name: "FETCH at SERIALIZABLE", steps: append([]string{"BEGIN ISOLATION LEVEL SERIALIZABLE"}, failing(declared+"; FETCH c", "FETCH c")[1:]...)},
		{name: "a savepoint released before", steps: failing(declared+"; SAVEPOINT r; FETCH c; RELEASE r", "FETCH c")},
		{name: "a savepoint within another", steps: append(failing(declared+"; FETCH c; SAVEPOINT r", "FETCH c"), "ROLLBACK TO r")},
		{name: "a savepoint released after", steps: append(failing(declared+"; FETCH c", "FETCH c"), "RELEASE s")},
		{name: "a driver's savepoint around each statement", steps: []string{
			"BEGIN", "SAVEPOINT a", declared, "RELEASE a", "SAVEPOINT a", "FETCH c", "RELEASE a", "SAVEPOINT a", "!FETCH c", "ROLLBACK TO a", "RELEASE a",
		}},
		{name: "a cursor that is closed", steps: append(failing(declared+"; FETCH c", "FETCH c"), "CLOSE c")},
		{name: "a portal with a row limit", steps: bound(`SELECT w('insert', g, 2, 'error') FROM generate_series(1, 2) g`)},
		{name: "INSERT RETURNING", steps: bound(`INSERT INTO rows (note) VALUES ('a'), (U&'\20AC') RETURNING note`)},
		{name: "UPDATE RETURNING", steps: failing(`INSERT INTO rows (n, note) VALUES (77, 'a'), (77, U&'\20AC'); COMMIT; BEGIN; \bind p UPDATE rows SET n = 1 WHERE n = 77 RETURNING note; `+limit, limit)},
		{name: "DELETE RETURNING", steps: failing(`INSERT INTO rows (n, note) VALUES (78, 'a'), (78, U&'\20AC'); COMMIT; BEGIN; \bind p DELETE FROM rows WHERE n = 78 RETURNING note; `+limit, limit)},
		{name: "data-modifying CTE", steps: bound(`WITH x AS (INSERT INTO rows (note) VALUES ('a'), (U&'\20AC') RETURNING note) SELECT note FROM x`)},
		{name: "a refcursor that a function returns", steps: failing(`SELECT opens('c', 'insert', 2, 'error'); FETCH c`, "FETCH c")},
		{name: "a cursor that fetches from a cursor", steps: failing(declared+"; FETCH c; DECLARE o CURSOR FOR SELECT fetches('c', false)", "FETCH o")},
		{name: "a function that fetches, and catches", steps: []string{"BEGIN", declared, "FETCH c", "SELECT fetches('c', true)"}},
		{name: "a cursor over a function that catches", steps: []string{"BEGIN", declared, "FETCH c", "DECLARE o CURSOR FOR SELECT fetches('c', true)", "FETCH o"}},
		{name: "a function that fetches twice", steps: []string{"BEGIN", declared, "SELECT fetches('c', false)", "SELECT fetches('c', true)"}},
		{name: "cancel", steps: failing(cancelled+"; FETCH c", "FETCH c")},
		{name: "cancel, caught", steps: []string{"BEGIN", cancelled, "FETCH c", "SELECT fetches('c', true)"}},
		{name: "statement_timeout", steps: failing(strings.Replace(declared, "error", "statement_timeout", 1)+"; FETCH c", "SET LOCAL statement_timeout = '200ms'; FETCH c")},
		{name: "lock_timeout", steps: failing(strings.Replace(declared, "error", "lock_timeout", 1)+"; FETCH c", "SET LOCAL lock_timeout = '1ms'; FETCH c")},
		{name: "fence.use", steps: failing(strings.Replace(declared, "insert", "use own", 1)+"; FETCH c", "FETCH c")},
		{name: "several grants", steps: failing(strings.Replace(declared, "insert", "list", 1)+"; FETCH c", "FETCH c")},
		{name: "after a procedure's COMMIT", steps: append([]string{"CALL commits('insert', 'error')"}, failing(declared+"; FETCH c", "FETCH c")...)},
		{name: "PREPARE TRANSACTION", steps: append(failing(declared+"; FETCH c", "FETCH c"), "PREPARE TRANSACTION '{gid}'"), state: `SELECT 1, ''`, commit: "COMMIT PREPARED '{gid}'"},
		{
			name: "dblink to itself", steps: []string{
				"SELECT dial('{address}')", "SELECT dblink_exec('self', 'BEGIN')", `SELECT dblink_exec('self', $$` + declared + `$$)`, "SELECT dblink_exec('self', 'MOVE c')",
				"SELECT dblink_exec('self', 'SAVEPOINT s')", "SELECT dblink_exec('self', 'MOVE c', false)", "SELECT dblink_exec('self', 'ROLLBACK TO s')",
			},
			state: `SELECT x.relied, x.lost FROM dblink('self', 'SELECT relied, lost FROM state()') x(relied bigint, lost text)`, commit: "SELECT dblink_exec('self', 'COMMIT')",
		},
	}
	// These held before: what writes runs to its end within one statement.
	for name, steps := range map[string][]string{
		"a function's block with EXCEPTION": {"BEGIN", "INSERT INTO rows (n) VALUES (1)", "SELECT tries('insert', 'error')"},
		"a loop over DML":                   {"BEGIN", "SELECT loops('insert', 'error')"},
		"WITH HOLD":                         {"BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT w('insert', g, 9, '') FROM generate_series(1, 2) g", "FETCH c", "SAVEPOINT s", "!SELECT 1 / 0", "ROLLBACK TO s"},
		"a deferred trigger":                {"BEGIN", "INSERT INTO later VALUES (1)", "SET CONSTRAINTS ALL IMMEDIATE", "SAVEPOINT s", "!SELECT 1 / 0", "ROLLBACK TO s"},
		"COPY":                              {"BEGIN", `\copy COPY rows (n) FROM STDIN|1`, "SAVEPOINT s", `!\copy COPY rows (n) FROM STDIN|x`, "ROLLBACK TO s"},
		"MERGE":                             {"BEGIN", "MERGE INTO rows r USING (SELECT 1) s(n) ON false WHEN NOT MATCHED THEN INSERT (n) VALUES (s.n)", "SAVEPOINT s", "!SELECT 1 / 0", "ROLLBACK TO s"},
		"parallel mode": {
			"BEGIN", "INSERT INTO rows (n) VALUES (1)", "SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0",
			"SELECT count(*) FROM big", "SAVEPOINT s", "!SELECT sum(parallel_w(n)) FROM big", "ROLLBACK TO s",
		},
	} {
		all = append(all, lostLock{name: name, steps: steps, held: true})
	}
	return all
}

// script makes steps, of which those with "!" in front fail. It returns the answer to a query after the last one.
func (p *portals) script(t *testing.T, steps []string, query string) (last reply) {
	t.Helper()
	for i, line := range steps {
		line, fails := strings.CutPrefix(line, "!")
		ask := `SELECT 1`
		if i == len(steps)-1 {
			ask = query
		}
		stepped, queried, err := p.step(t.Context(), line, ask)
		if err != nil || (stepped.err != nil) != fails {
			t.Fatalf("%s: %v, %v", line, stepped.err, err)
		}
		last = queried
	}
	return last
}

// run makes the transaction, and reports whether the resource could be armed at once before its COMMIT.
func (c lostLock) run(t *testing.T, w nestWorld, resource string) (armed bool) {
	t.Helper()
	options := w.grant(t, resource)
	gid := fmt.Sprintf("lost_%d", counter.Add(1))
	fill := strings.NewReplacer("{address}", w.remote(options), "{gid}", gid).Replace
	session := dial(t, w.login, options...)
	state := c.state
	if state == "" {
		state = sqlState
	}
	steps := make([]string, len(c.steps))
	for i, line := range c.steps {
		steps[i] = fill(line)
	}
	last := session.script(t, steps, state)
	if last.err != nil || len(last.values) != 2 || last.values[0] == "0" {
		t.Fatalf("nothing is uncommitted: %v %v", last.err, last.values)
	}
	arm := func(token fence.Token) bool {
		return value[bool](t, w.world, `SELECT fence.arm($1, $2, $3, '')`, resource, int64(token), fence.NewSeal().Hash())
	}
	armed = arm(6)
	commit := c.commit
	if commit == "" {
		commit = "COMMIT"
	}
	stepped, _, err := session.step(t.Context(), fill(commit), `SELECT 1`)
	if err != nil || stepped.err != nil {
		t.Fatalf("%s: %v, %v", commit, stepped.err, err)
	}
	if !armed && !arm(6) {
		t.Errorf("it can't be armed after COMMIT")
	}
	return armed
}

func TestALockStaysWithWhatWasWrittenUnderIt(t *testing.T) {
	t.Parallel()
	w := setupNests(t)
	for i, c := range lostLocks() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.run(t, w, fmt.Sprintf("u/held/%d", i)) {
				t.Error("the next holder was armed, and then the write was committed")
			}
		})
	}
}

func TestALockOfThePortalGoesBeforeWhatWasWritten(t *testing.T) {
	t.Parallel()
	w := setupNests(t)
	mutateFunction(t, w.world, "fence.fast_check", withoutSubtransaction, "")
	w.exec(t, `CREATE OR REPLACE FUNCTION check_state() RETURNS void LANGUAGE sql AS ''`)
	for i, c := range lostLocks() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if armed := c.run(t, w, fmt.Sprintf("u/lost/%d", i)); armed == c.held {
				t.Errorf("armed: %t", armed)
			}
		})
	}
}

// A bare token that has raised the fence keeps the writers of the older one out until its COMMIT.
func TestABareRaiseKeepsOlderWritersOut(t *testing.T) {
	t.Parallel()
	for _, mutant := range []bool{false, true} {
		t.Run(fmt.Sprintf("mutant %t", mutant), func(t *testing.T) {
			t.Parallel()
			w := setupNests(t)
			if mutant {
				mutateFunction(t, w.world, "fence.raise_unsealed", "fence.try_lock(k, true)", "pg_try_advisory_xact_lock(k)")
			}
			older := connect(t, w.login, "-c fence.resource=b/1", "-c fence.token=1", "-c fence.impatient=yes")
			const write = `INSERT INTO bare VALUES (1)`
			if _, err := older.Exec(t.Context(), write); err != nil {
				t.Fatal(err)
			}
			raises := strings.Replace(declared, "insert", "bare", 1)
			dial(t, w.login, w.options...).script(t, failing(raises+"; FETCH c", "FETCH c"), `SELECT 1`)
			_, err := older.Exec(t.Context(), write)
			if mutant {
				if err != nil {
					t.Errorf("the mutant refuses: %v", err)
				}
				return
			}
			wantCode(t, err, "ZF005")
		})
	}
}

// Invalidating waits for a bare raise within its limit: the table's lock tells of it.
func TestInvalidatingWaitsNoLongerThanItsLimitForABareRaise(t *testing.T) {
	t.Parallel()
	w := setupNests(t)
	w.exec(t, `SELECT fence.raise('b/1', 1, NULL, '')`)
	raises := strings.Replace(declared, "insert", "bare", 1)
	session := dial(t, w.login, w.options...)
	session.script(t, failing(raises+"; FETCH c", "FETCH c"), `SELECT 1`)
	_, err := connect(t, w.pg.URL, "-c statement_timeout=30s").Exec(t.Context(), `SELECT fence.invalidate_all(p_limit => '20 ms')`)
	wantCode(t, err, "ZF005")
	session.script(t, []string{"COMMIT"}, `SELECT 1`)
	w.exec(t, `SELECT fence.invalidate_all()`)
}
