package pgfence_test

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// The rule under test: a transaction that holds an uncommitted guarded write holds the lock of the grant that it was
// written under, whatever cursors, savepoints and failures there were in between. A raise, and what changes an object,
// has locks of its own. testdata/nests.sql says which locks each change relies on.

var (
	nestsRun  = flag.Int("nests", 760, "random transactions of TestNestsKeepTheirLocks; a release runs 3800")
	nestsSeed = flag.Uint64("nests.seed", 1, "the first one's seed")
)

//go:embed testdata/nests.sql
var sqlNests string

// nestWorld is a database with the tables of testdata/nests.sql, and a login that may do all that is in it.
type nestWorld struct {
	world
	login   string
	options []string // of a session, which presents u/1
}

func setupNests(t testing.TB) nestWorld {
	t.Helper()
	pg := testenv.Postgres(t)
	w := nestWorld{world: world{pg: pg, admin: pg.Pool(t)}, login: pg.As(t, "fence_writer")}
	w.exec(t, sqlNests)
	w.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('rows', under => 'u/'), fence.protect('bare', under => 'b/'), fence.allow_unsealed('b/*'),
		objects.create_bucket('bk', 0), fence.claim_source('postgres')`)
	w.exec(t, `UPDATE objects.installation SET history = (SELECT identity FROM fence.identity()), since = '-infinity'`)
	w.options = w.grant(t, "u/1")
	w.grant(t, "u/2")
	w.grant(t, "bk")
	holder := connect(t, pg.URL) // without a transaction id: a subscription of another test would wait for its end
	if _, err := holder.Exec(t.Context(), `BEGIN; LOCK TABLE busy IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	return w
}

// grant arms a resource, and returns the options of a session that presents the grant. DISCARD ALL and RESET take back
// what a session has set, not its options; so its limits are among them.
func (w nestWorld) grant(t testing.TB, resource string) (options []string) {
	t.Helper()
	g := fence.Grant{Resource: resource, Token: 5, Seal: fence.NewSeal()}
	w.exec(t, `SELECT fence.raise($1, 5, $2, '')`, resource, g.Seal.Hash())
	w.exec(t, `INSERT INTO grants VALUES ($1, 5, split_part($2, '.', 2))`, resource, g.Presented())
	return []string{"-c fence.resource=" + resource, "-c fence.token=" + g.Presented(), "-c statement_timeout=20s", "-c lock_timeout=10s", "-c client_encoding=LATIN1"}
}

// Everything that a nest may do at one place: what relies on locks, how a statement fails, and how a cursor is made.
var (
	allKinds = []string{
		"insert", "update", "delete", "merge", "use", "list", "both", "bare", "bare again", "arm", "arm after raise", "raise twice", "group",
		"group after raise", "take", "take after raise",
		"retire", "issued", "put", "puts", "upload", "tags", "deletion", "deletion if", "restore", "part", "complete", "condemn", "publish",
	}
	ownKinds = []string{"insert", "update", "delete", "merge", "use", "list", "both", "bare", "bare again"} // which a writer can do by itself
	failures = []string{"error", "cancel", "statement_timeout", "lock_timeout"}
)

// form is one way to write, to fail, or to go back. Each takes a few steps of a nest.
type form struct {
	name string
	take func(n *nest)
}

// The forms of the transactions. Those that open something leave it open: later forms fetch from it.
var forms = []form{
	{"statement", func(n *nest) { n.dof(`SELECT w('%s', 1, %d, '%s')`, n.kind(), n.rng.IntN(4), n.failure()) }},
	{"FETCH", func(n *nest) { n.cursor(); n.fetch("FETCH") }},
	{"MOVE", func(n *nest) { n.cursor(); n.fetch("MOVE") }},
	{"portal", func(n *nest) {
		n.bindf(`SELECT w('%s', g, %d, '%s') FROM generate_series(1, 4) g`, n.kind(), 2+n.rng.IntN(3), n.failure())
	}},
	{"INSERT RETURNING", func(n *nest) {
		n.bindf(`INSERT INTO rows (note) VALUES ('a'), ('b'), (%s) RETURNING note`, n.unprintable())
	}},
	{"data-modifying CTE", func(n *nest) {
		n.bindf(`WITH x AS (INSERT INTO rows (note) VALUES ('a'), (%s) RETURNING note) SELECT note FROM x`, n.unprintable())
	}},
	{"refcursor", func(n *nest) {
		name := n.name()
		if n.dof(`SELECT opens('%s', '%s', %d, '%s')`, name, n.kind(), 2+n.rng.IntN(3), n.failure()) {
			n.open = append(n.open, opened{name: name, depth: len(n.savepoints)})
		}
		n.fetch("FETCH")
	}},
	{"cursor of a cursor", func(n *nest) {
		inner, outer := n.cursor(), n.name()
		if n.dof(`DECLARE %s CURSOR FOR SELECT fetches('%s', %t) FROM generate_series(1, 4) g`, outer, inner, n.rng.IntN(2) == 0) {
			n.open = append(n.open, opened{name: outer, depth: len(n.savepoints)})
		}
		n.fetch("FETCH")
	}},
	{"block with EXCEPTION", func(n *nest) { n.dof(`SELECT tries('%s', '%s')`, n.kind(), n.failure()) }},
	{"loop over DML", func(n *nest) { n.dof(`SELECT loops('%s', '%s')`, n.kind(), n.failure()) }},
	{"WITH HOLD", func(n *nest) {
		name := n.name()
		if n.dof(`DECLARE %s CURSOR WITH HOLD FOR SELECT w('%s', g, %d, 'error') FROM generate_series(1, 4) g`, name, n.kind(), 9*n.rng.IntN(2)+4) {
			n.open = append(n.open, opened{name: name, depth: len(n.savepoints)})
		}
		n.fetch("FETCH")
	}},
	{"deferred trigger", func(n *nest) {
		n.dof(`INSERT INTO later VALUES (1)`)
		if n.rng.IntN(2) == 0 {
			n.dof(`SET CONSTRAINTS ALL IMMEDIATE`)
		}
	}},
	{"parallel mode", func(n *nest) {
		n.dof(`SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0; SET LOCAL max_parallel_workers_per_gather = 1`)
		n.dof([]string{`SELECT count(*) FROM big WHERE n > %d`, `SELECT sum(parallel_w(n)) FROM big WHERE n = %d`}[n.rng.IntN(2)], n.rng.IntN(50))
		n.dof(`SET LOCAL parallel_setup_cost = 1000; SET LOCAL max_parallel_workers_per_gather = 0`)
	}},
	{"COPY", func(n *nest) { n.dof(`\copy COPY rows (n) FROM STDIN|1|%s`, []string{"2", "no number"}[n.rng.IntN(2)]) }},
	{"MERGE", func(n *nest) {
		n.dof(`MERGE INTO rows r USING (VALUES (1), (%d)) s(n) ON r.id = -s.n WHEN NOT MATCHED THEN INSERT (n) VALUES (4 / s.n)`, n.rng.IntN(2))
	}},
	{"cancel", func(n *nest) { n.failsBy("cancel") }},
	{"statement_timeout", func(n *nest) { n.failsBy("statement_timeout") }},
	{"lock_timeout", func(n *nest) { n.failsBy("lock_timeout") }},
	{"autosave", func(n *nest) {
		c := n.cursor()
		for range 3 {
			n.autosaved(`FETCH ` + c)
		}
	}},
	{"dblink to itself", func(n *nest) {
		n.dof(`SELECT remote('%s', '%s', '%s')`, n.address, []string{"insert", "use", "list", "both"}[n.rng.IntN(4)], failures[n.rng.IntN(2)])
	}},
}

// Two forms are no steps within a transaction.
const (
	formCommits  = "procedure with COMMIT"
	formPrepared = "PREPARE TRANSACTION"
)

func names(forms []form) (all []string) {
	for _, f := range forms {
		all = append(all, f.name)
	}
	return all
}

type opened struct {
	name   string
	portal bool // of the extended protocol
	depth  int  // savepoints below it
}

// nest is one random transaction.
type nest struct {
	ctx     context.Context
	rng     *rand.Rand
	session *portals
	admin   *pgx.Conn
	address string
	kinds   []string

	savepoints []string
	open       []opened
	names      int
	over       bool // the transaction has ended
	log        []string
	taken      map[string]bool // forms
	relied     map[string]bool // forms in which the transaction relied on locks
	form       string
	lost       string // the locks that were lost; empty: none
	err        error  // of the connection
}

const sqlState = `SELECT relied, lost FROM state()`

func (n *nest) kind() string    { return n.kinds[n.rng.IntN(len(n.kinds))] }
func (n *nest) failure() string { return failures[n.rng.IntN(2)] } // the others need a setting: failsBy
func (n *nest) name() string    { n.names++; return "c" + strconv.Itoa(n.names) }

// unprintable is a text that the session's encoding lacks, half of the times: the row is written, and can't be sent.
func (n *nest) unprintable() string { return []string{`'c'`, `U&'\20AC'`}[n.rng.IntN(2)] }

// ended reports whether no step can follow: the transaction has ended, a lock was lost, or the connection.
func (n *nest) ended() bool { return n.over || n.lost != "" || n.err != nil }

// dof makes one step, returns to a savepoint if it failed, and looks at the locks. It reports whether the step succeeded.
func (n *nest) dof(format string, args ...any) bool {
	if n.ended() {
		return false
	}
	line := fmt.Sprintf(format, args...)
	n.log = append(n.log, line)
	stepped, queried, err := n.session.step(n.ctx, line, sqlState)
	if err != nil {
		n.err = err
		return false
	}
	if stepped.err != nil {
		n.log = append(n.log, "-- "+stepped.err.Code+" "+stepped.err.Message)
		if stepped.err.Code == "PX001" {
			n.lost = stepped.err.Message
			return false
		}
	}
	if stepped.status == 'E' {
		n.back()
		return false
	}
	n.look(queried)
	n.over = stepped.status == 'I'
	return stepped.err == nil
}

// look judges the answer to sqlState.
func (n *nest) look(r reply) {
	if n.err != nil {
		return
	} else if r.err != nil || len(r.values) != 2 {
		n.err = fmt.Errorf("state: %w, %v", r.err, r.values)
		return
	}
	n.lost = r.values[1]
	if r.values[0] != "0" {
		n.relied[n.form] = true
	}
}

// back returns from a failure: to a savepoint, the innermost one most often, or by ROLLBACK.
func (n *nest) back() {
	if len(n.savepoints) == 0 {
		n.over = true
		n.send(`ROLLBACK`)
		return
	}
	to := len(n.savepoints) - 1
	if n.rng.IntN(4) == 0 {
		to = n.rng.IntN(len(n.savepoints))
	}
	n.rollbackTo(to)
}

func (n *nest) rollbackTo(to int) {
	if n.ended() {
		return
	}
	n.look(n.send(`ROLLBACK TO ` + n.savepoints[to]))
	n.savepoints = n.savepoints[:to+1]
	n.open = slices.DeleteFunc(n.open, func(o opened) bool { return o.depth > to })
}

// send makes a step that succeeds, and returns the answer to sqlState.
func (n *nest) send(line string) (queried reply) {
	n.log = append(n.log, line)
	stepped, queried, err := n.session.step(n.ctx, line, sqlState)
	if err == nil && stepped.err != nil {
		err = fmt.Errorf("%s: %w", line, stepped.err)
	}
	n.err = err
	return queried
}

func (n *nest) savepoint() {
	name := n.name()
	if n.dof(`SAVEPOINT %s`, name) {
		n.savepoints = append(n.savepoints, name)
	}
}

func (n *nest) release() {
	if len(n.savepoints) == 0 {
		return
	}
	to := n.rng.IntN(len(n.savepoints))
	if n.dof(`RELEASE %s`, n.savepoints[to]) {
		n.savepoints = n.savepoints[:to]
		for i := range n.open {
			n.open[i].depth = min(n.open[i].depth, to)
		}
	}
}

// cursor declares a cursor whose rows act, and reads its first row. Most of them fail at a later one.
func (n *nest) cursor() (name string) {
	name = n.name()
	if n.dof(`DECLARE %s CURSOR FOR SELECT w('%s', g, %d, '%s') FROM generate_series(1, 4) g`, name, n.kind(), 2+n.rng.IntN(4), n.failure()) {
		n.open = append(n.open, opened{name: name, depth: len(n.savepoints)})
		n.dof([]string{`FETCH %s`, `MOVE %s`}[n.rng.IntN(2)], name)
	}
	return name
}

// bindf binds a portal, and reads its first row.
func (n *nest) bindf(format string, args ...any) {
	name := n.name()
	if n.dof(`\bind %s %s`, name, fmt.Sprintf(format, args...)) {
		n.open = append(n.open, opened{name: name, portal: true, depth: len(n.savepoints)})
		n.dof(`\execute %s 1`, name)
		n.fetch("FETCH")
	}
}

// fetch reads from something open, most often behind a new savepoint.
func (n *nest) fetch(verb string) {
	if n.rng.IntN(4) > 0 {
		n.savepoint()
	}
	if len(n.open) == 0 {
		return
	}
	i := n.rng.IntN(len(n.open))
	o := n.open[i]
	rows := 1 + n.rng.IntN(2)
	line := fmt.Sprintf(`%s %d FROM %s`, verb, rows, o.name)
	if o.portal {
		line = fmt.Sprintf(`\execute %s %d`, o.name, rows)
	}
	if !n.dof(`%s`, line) { // it can't be used again
		n.open = slices.DeleteFunc(n.open, func(x opened) bool { return x.name == o.name })
	}
}

// failsBy fetches a row of a cursor that fails in this way.
func (n *nest) failsBy(how string) {
	name := n.name()
	if !n.dof(`DECLARE %s CURSOR FOR SELECT w('%s', g, 2, '%s') FROM generate_series(1, 2) g`, name, n.kind(), how) {
		return
	}
	n.dof(`FETCH %s`, name)
	n.savepoint()
	limit := map[string]string{"statement_timeout": "SET LOCAL statement_timeout = '3ms'; ", "lock_timeout": "SET LOCAL lock_timeout = '1ms'; "}[how]
	n.dof(`%sFETCH %s`, limit, name)
}

// autosaved makes one step as a driver with savepoints around each statement does.
func (n *nest) autosaved(line string) {
	const auto = "autosave"
	if !n.dof(`SAVEPOINT %s`, auto) {
		return
	}
	n.savepoints = append(n.savepoints, auto)
	at := len(n.savepoints) - 1
	n.dof(`%s`, line)
	if !n.over && len(n.savepoints) == at+1 && n.dof(`RELEASE %s`, auto) {
		n.savepoints = n.savepoints[:at]
	}
}

// run makes one transaction.
func (n *nest) run() {
	if n.form = formCommits; n.rng.IntN(3) == 0 {
		n.taken[n.form] = true
		if n.dof(`CALL commits('%s', '%s')`, n.kind(), n.failure()) {
			n.relied[n.form] = true
		}
	}
	n.over = false
	level := []string{"READ COMMITTED", "READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}[n.rng.IntN(5)]
	n.dof(`BEGIN ISOLATION LEVEL %s`, level)
	if level != "READ COMMITTED" {
		n.kinds = slices.DeleteFunc(slices.Clone(n.kinds), func(k string) bool { return !slices.Contains(ownKinds, k) })
		if len(n.kinds) == 0 {
			n.kinds = ownKinds
		}
	}
	for range 8 + n.rng.IntN(10) {
		switch n.rng.IntN(10) {
		case 0, 1:
			n.savepoint()
		case 2:
			n.release()
		case 3:
			if len(n.savepoints) > 0 {
				n.rollbackTo(n.rng.IntN(len(n.savepoints)))
			}
		default:
			f := forms[n.rng.IntN(len(forms))]
			n.form = f.name
			if len(n.savepoints) == 0 && n.rng.IntN(10) > 0 {
				n.savepoint()
			}
			if !n.over {
				n.taken[f.name] = true
			}
			f.take(n)
		}
	}
	if !n.ended() {
		n.end()
	}
}

// end ends the transaction in one of the ways.
func (n *nest) end() {
	switch n.rng.IntN(4) {
	case 0:
		n.dof(`ROLLBACK`)
	case 1, 2:
		n.form = formPrepared
		n.prepare()
	default:
		n.dof(`COMMIT`)
	}
	if !n.ended() {
		n.send(`ROLLBACK`)
	}
	if n.lost == "" && n.err == nil {
		n.send(`CLOSE ALL`)
	}
}

func (n *nest) prepare() {
	_, relied, err := n.session.step(n.ctx, `SELECT 1`, `SELECT relied()`)
	if n.err = err; err != nil {
		return
	} else if relied.err != nil {
		n.err = relied.err
		return
	}
	gid := fmt.Sprintf("nest_%d", counter.Add(1))
	n.over = false
	stepped, _, err := n.session.step(n.ctx, `PREPARE TRANSACTION '`+gid+`'`, `SELECT 1`)
	n.log = append(n.log, `PREPARE TRANSACTION`)
	n.over = stepped.status == 'I'
	if n.err = err; err != nil || stepped.err != nil {
		return // a cursor WITH HOLD, or a deferred trigger
	}
	if rows, err := n.admin.Query(n.ctx, `SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1)`, gid); err != nil {
		n.err = err
		return
	} else if there, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); err != nil || !there {
		n.err = err
		return // PREPARE of a transaction that had failed
	}
	n.taken[n.form] = true
	n.relied[n.form] = n.relied[n.form] || !strings.Contains(relied.values[0], `"locks": []`)
	if n.err = n.admin.QueryRow(n.ctx, `SELECT lost_of_prepared($1)`, relied.values[0]).Scan(&n.lost); n.err != nil {
		return
	}
	verb := []string{"COMMIT", "ROLLBACK"}[n.rng.IntN(2)]
	_, n.err = n.admin.Exec(n.ctx, verb+` PREPARED '`+gid+`'`)
}

// nestRun runs nests on one session after the other, until one loses a lock.
type nestRun struct {
	taken, relied map[string]int // nests in which a form was taken; and in which the transaction relied on locks then
	nests         int
	lost          string // what the last nest lost, and its steps
	err           error  // of the last nest
}

// nester makes the nests of one worker.
type nester struct {
	admin   *pgx.Conn
	session *portals
	address string
}

func (w nestWorld) nester(t testing.TB) nester {
	t.Helper()
	return nester{admin: connect(t, w.pg.URL), session: dial(t, w.login, w.options...), address: w.remote(w.options)}
}

func (w nester) run(ctx context.Context, first, count uint64, kinds []string) (r nestRun) {
	r.taken, r.relied = map[string]int{}, map[string]int{}
	for seed := first; seed < first+count; seed++ {
		n := &nest{
			ctx: ctx, rng: rand.New(rand.NewPCG(seed, 0)), session: w.session, admin: w.admin, address: w.address, kinds: kinds,
			taken: map[string]bool{}, relied: map[string]bool{},
		}
		n.run()
		r.nests++
		for name := range n.taken {
			r.taken[name]++
		}
		for name := range n.relied {
			r.relied[name]++
		}
		steps := strings.Join(n.log, "\n")
		if n.err != nil {
			r.err = fmt.Errorf("seed %d: %w\n%s", seed, n.err, steps)
			return r
		} else if n.lost != "" {
			r.lost = fmt.Sprintf("seed %d: %s\n%s", seed, n.lost, steps)
			return r
		}
	}
	return r
}

// remote is the address for a session with these options that dblink opens.
func (w nestWorld) remote(options []string) string {
	separator := "?"
	if strings.Contains(w.login, "?") {
		separator = "&"
	}
	return w.login + separator + "options=" + strings.ReplaceAll(url.QueryEscape(strings.Join(options, " ")), "+", "%20")
}

// Each kind does what it is for: otherwise the nests would prove nothing of it.
func TestEachKindReliesOnLocks(t *testing.T) {
	t.Parallel()
	w := setupNests(t)
	session := dial(t, w.login, w.options...)
	for _, kind := range allKinds {
		last := session.script(t, []string{"BEGIN", `SELECT act('bare')`, `SELECT act('put')`, "COMMIT", "BEGIN", `SELECT act('` + kind + `')`}, sqlState)
		if len(last.values) != 2 || last.values[0] == "0" || last.values[1] != "" {
			t.Errorf("%s: %v", kind, last)
		}
		session.script(t, []string{"ROLLBACK"}, `SELECT 1`)
	}
}

func TestNestsKeepTheirLocks(t *testing.T) {
	t.Parallel()
	const workers = 4
	per := uint64(*nestsRun+workers-1) / workers
	var mu sync.Mutex
	var wg sync.WaitGroup
	taken, relied, nests := map[string]int{}, map[string]int{}, 0
	begun := time.Now()
	for i := range uint64(workers) {
		w := setupNests(t).nester(t)
		wg.Go(func() {
			r := w.run(t.Context(), *nestsSeed+i*per, per, allKinds)
			mu.Lock()
			defer mu.Unlock()
			nests += r.nests
			for name, n := range r.taken {
				taken[name] += n
				relied[name] += r.relied[name]
			}
			if r.lost != "" || r.err != nil {
				t.Error(r.lost, r.err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d nests in %v; of each form the nests that took it, and in which the transaction relied on locks then:", nests, time.Since(begun).Round(time.Second))
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		t.Logf("%6d %6d  %s", taken[name], relied[name], name)
	}
	for _, name := range append([]string{formCommits, formPrepared}, names(forms)...) {
		if nests >= 760 && (taken[name] < nests/4 || relied[name] == 0) {
			t.Errorf("%s is in %d nests, of which %d relied on locks", name, taken[name], relied[name])
		}
	}
}

// withoutSubtransaction is what makes the subtransaction of fence.fast_check.
const withoutSubtransaction = "    EXCEPTION WHEN SQLSTATE 'ZF000' THEN NULL;   -- never, as in fence.try_lock\n"

// Each place that takes a lock for uncommitted work, without the subtransaction that keeps it: the nests find it.
func TestNestsFindEachLockWithoutItsSubtransaction(t *testing.T) {
	t.Parallel()
	const shared, exclusive = "pg_catalog.pg_try_advisory_xact_lock_shared(", "pg_catalog.pg_try_advisory_xact_lock("
	for _, c := range []struct {
		function, old, replacement string
		kinds                      []string
	}{
		{"fence.try_lock", "EXCEPTION WHEN SQLSTATE 'ZF000' THEN   -- never: the clause makes the subtransaction\n  RETURN false;\n", "", allKinds},
		{"fence.fast_check", withoutSubtransaction, "", []string{"insert"}},
		{"fence.fast_check", withoutSubtransaction, "", []string{"use"}},
		{"fence.fast_check", withoutSubtransaction, "", []string{"publish"}},
		{"fence.verify", "fence.try_lock(wanted, false)", shared + "wanted)", []string{"issued"}},
		{"fence.verify", "fence.try_lock(wanted, false)", shared + "wanted)", []string{"bare", "bare again"}},
		{"fence.raise_unsealed", "fence.try_lock(k, true)", exclusive + "k)", []string{"bare"}},
		{"fence.raise", "fence.try_lock(k, true)", exclusive + "k)", []string{"raise twice"}},
		{"fence.arm", "fence.try_lock(fence.key(f.resource, f.token, f.seal), true)", exclusive + "fence.key(f.resource, f.token, f.seal))", []string{"arm"}},
		{"fence.arm_otherwise", "fence.try_lock(k, true)", exclusive + "k)", []string{"arm after raise"}},
		{"fence.arm_group", "fence.try_lock(fence.key(f.resource, f.token, f.seal), true)", exclusive + "fence.key(f.resource, f.token, f.seal))", []string{"group"}},
		{"fence.arm_group", "fence.try_lock(f.undrained[1], true)", exclusive + "f.undrained[1])", []string{"group after raise"}},
		{"fence.take_leases", "fence.try_lock(fence.key(f.resource, f.token, f.seal), true)", exclusive + "fence.key(f.resource, f.token, f.seal))", []string{"take"}},
		{"fence.take_leases", "fence.try_lock(f.undrained[1], true)", exclusive + "f.undrained[1])", []string{"take after raise"}},
		{"fence.retire", "fence.try_lock(k, true)", exclusive + "k)", []string{"retire"}},
		{"objects.hold_rules", "fence.try_lock(hashtextextended(p_bucket, 1), false)", shared + "hashtextextended(p_bucket, 1))", []string{"upload"}},
		{"objects.hold_upload", "fence.try_lock(hashtextextended(p_upload::text, 2), false)", shared + "hashtextextended(p_upload::text, 2))", []string{"part"}},
		{"objects.try_put", "fence.lock(turn)", "pg_advisory_xact_lock(turn)", []string{"put"}},
		{"objects.try_put", "fence.try_lock(turn, true)", exclusive + "turn)", []string{"puts"}},
		{"objects.try_put", "fence.try_lock(hashtextextended(p_bucket, 1), false)", shared + "hashtextextended(p_bucket, 1))", []string{"put"}},
		{"objects.try_put", "fence.try_lock(fence.key(p_resource, p_token, held), false)", shared + "fence.key(p_resource, p_token, held))", []string{"put"}},
		{"objects.take_turn", "fence.lock(", "pg_advisory_xact_lock(", []string{"upload"}},
		{"objects.put_tags", "fence.lock(", "pg_advisory_xact_lock(", []string{"tags"}},
		{"objects.delete_key", "fence.lock(", "pg_advisory_xact_lock(", []string{"deletion"}},
		{"objects.restore_version", "fence.lock(", "pg_advisory_xact_lock(", []string{"restore"}},
		{"objects.condemn", "fence.try_lock(hashtextextended(x.id::text, 2), true)", exclusive + "hashtextextended(x.id::text, 2))", []string{"condemn"}},
	} {
		t.Run(c.function+" "+c.kinds[0], func(t *testing.T) {
			t.Parallel()
			w := setupNests(t)
			mutateFunction(t, w.world, c.function, c.old, c.replacement)
			r := w.nester(t).run(t.Context(), 1, 1000, c.kinds)
			if r.err != nil || r.lost == "" {
				t.Errorf("%d nests do not find it: %v", r.nests, r.err)
			} else {
				t.Logf("in nest %d: %s", r.nests, strings.SplitN(r.lost, "\n", 2)[0])
			}
		})
	}
}
