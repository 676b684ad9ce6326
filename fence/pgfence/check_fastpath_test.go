package pgfence_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// presentation is how a transaction presents its grant. Each has its own fast path in the check.
type presentation struct {
	name    string
	touched bool                                                 // a raise of the resource was rolled back before
	present func(g fence.Grant) (resource, token, grants string) // nil: one grant, by its plain name
}

// percentEncoded encodes more of a name than it must.
func percentEncoded(name string) string { return strings.ReplaceAll(name, "/", "%2f") }

// otherGrant is for a resource that no table here needs, so it is not checked.
var otherGrant = users + "=1." + strings.Repeat("0", 32)

var presentations = []presentation{
	{name: "after a raise that was rolled back", touched: true},
	{name: "percent-encoded", present: func(g fence.Grant) (resource, token, grants string) {
		return percentEncoded(g.Resource), g.Presented(), ""
	}},
	{name: "in a list", present: func(g fence.Grant) (resource, token, grants string) {
		return "", "", otherGrant + "," + g.Resource + "=" + g.Presented()
	}},
	{name: "in a list, percent-encoded", present: func(g fence.Grant) (resource, token, grants string) {
		return "", "", percentEncoded(g.Resource) + "=" + g.Presented() + "," + otherGrant
	}},
	{name: "in a list with an encoded comma", present: func(g fence.Grant) (resource, token, grants string) {
		return "", "", "a%2Cb" + otherGrant + "," + percentEncoded(g.Resource) + "=" + g.Presented()
	}},
	{name: "in a list, after a raise that was rolled back", touched: true, present: func(g fence.Grant) (resource, token, grants string) {
		return "", "", g.Resource + "=" + g.Presented() + "," + otherGrant
	}},
}

// settings presents g as the world is set up, as fence.resource, fence.token and fence.grants.
func (w world) settings(t testing.TB, g fence.Grant) []any {
	t.Helper()
	if w.how.touched {
		w.touch(t, g)
	}
	if w.how.present == nil {
		return []any{fence.EscapeResource(g.Resource), g.Presented(), ""}
	}
	resource, token, grants := w.how.present(g)
	return []any{resource, token, grants}
}

// touch raises the fence of a grant in a transaction that is rolled back.
func (w world) touch(t testing.TB, g fence.Grant) {
	t.Helper()
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hash := fence.NewSeal().Hash()
	if _, err := tx.Exec(t.Context(), `SELECT fence.raise($1, $2, $3, '')`, g.Resource, int64(g.Token)+1, hash); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if value[bool](t, w, `SELECT xmax = '0' FROM fence.resources WHERE resource = $1`, g.Resource) {
		t.Fatal("the raise left no trace")
	}
}

// begin begins a transaction that presents g as the world is set up.
func (w world) begin(t testing.TB, level pgx.TxIsoLevel, g fence.Grant) pgx.Tx {
	t.Helper()
	settings := w.settings(t, g)
	tx, err := w.session(t).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	const set = `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true), set_config('fence.grants', $3, true)`
	if _, err := tx.Exec(t.Context(), set, settings...); err != nil {
		t.Fatal(err)
	}
	return tx
}

// Three mistakes would make the check slow: functions that are planned on each call, a SET clause, which makes
// PostgreSQL plan again whatever runs under the other search_path, and too many calls. The test counts calls, because
// unlike time they are the same on a busy machine.
func TestTheCheckHasNoCliffs(t *testing.T) { //nolint:tparallel // the cases follow each other in one world
	t.Parallel()
	w := setup(t)
	for _, how := range append(presentations, presentation{name: "by its plain name"}) {
		t.Run(how.name, func(t *testing.T) {
			w := w
			w.how = how
			g := w.renew(t)
			settings := w.settings(t, g)
			conn := connect(t, w.pg.URL, "-c track_functions=all")
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			const set = `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true), set_config('fence.grants', $3, true)`
			if _, err := tx.Exec(t.Context(), set, settings...); err != nil {
				t.Fatal(err)
			}
			const writes, most = 10, 6 // calls for each write
			for range writes {
				if err := write(t.Context(), tx, g.Token); err != nil {
					t.Fatal(err)
				}
			}
			calls, dear := callsOf(t, tx)
			if calls < writes || calls > writes*most {
				t.Errorf("%d calls for %d writes, want at most %d for each", calls, writes, most)
			}
			if dear != "" {
				t.Errorf("the check calls %s", dear)
			}
		})
	}
}

// callsOf counts the calls of the fence's functions in a transaction, and names the expensive ones.
func callsOf(t *testing.T, tx pgx.Tx) (calls int, dear string) {
	t.Helper()
	const count = `SELECT coalesce(sum(s.calls), 0)::int,
		coalesce(string_agg(s.funcname, ' ') FILTER (WHERE p.proconfig IS NOT NULL OR l.lanname = 'sql'), '')
		FROM pg_stat_xact_user_functions s JOIN pg_proc p ON p.oid = s.funcid JOIN pg_language l ON l.oid = p.prolang WHERE s.schemaname = 'fence'`
	if err := tx.QueryRow(t.Context(), count).Scan(&calls, &dear); err != nil {
		t.Fatal(err)
	}
	return calls, dear
}

// Rows and several grants took 20 times as long as one resource for the whole table when the search_path differed
// before and after a statement.
func TestTheCheckOfRowsUnderSeveralGrantsHasNoCliffs(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE docs (id int, token bigint); GRANT ALL ON docs TO PUBLIC; SELECT fence.protect('docs', per_row => $$'docs/' || id$$, stamp => 'token')`)
	var names, tokens []string
	for i := range 10 {
		g := w.acquire(t, fmt.Sprintf("docs/%d", i), 34)
		names, tokens = append(names, g.Resource), append(tokens, g.Presented())
	}
	tx, err := connect(t, w.pg.URL, "-c track_functions=all").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fence.use($1::text[], $2::text[])`, names, tokens); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`INSERT INTO docs VALUES (3)`, `INSERT INTO docs VALUES (4), (5)`, `UPDATE docs SET id = 6 WHERE id = 4`, `DELETE FROM docs`} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	// Each statement checks the ten grants before it. Each row checks its own for its stamp and after it.
	if calls, dear := callsOf(t, tx); dear != "" || calls > 200 {
		t.Errorf("the check makes %d calls; dear are: %s", calls, dear)
	}
}

// The rule of arm_race_test.go holds for each way to present a grant.
func TestNoWriteLandsAfterArmReturnedHoweverItPresentsItsGrant(t *testing.T) {
	t.Parallel()
	nothingLandsLate(t, func(t *testing.T) world { return setup(t) }, []place{
		{"stopped before COMMIT", "", stoppedBeforeCommit, []string{"without the lock"}},
		{"stopped after the snapshot", "", stoppedAfterSnapshot, []string{"without the xmax test"}},
		{"stopped before the lock", beforeLock, stoppedInTheGuard, nil},
		{"stopped between lock and read", beforeRead, stoppedInTheGuard, nil},
		{"stopped after the read", afterRead, stoppedInTheGuard, []string{"without the lock"}},
	}, presentations, []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead})
}

// ROLLBACK TO releases the lock: arming does not wait, and the next statement checks again.
func TestAfterRollbackToTheNextStatementChecksAgain(t *testing.T) { //nolint:tparallel // the cases follow each other in one world
	t.Parallel()
	w := setup(t)
	for _, how := range presentations {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%s", how.name, level), func(t *testing.T) {
				w := w
				w.how = how
				g := w.renew(t)
				tx := w.begin(t, level, g)
				nested, err := tx.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := write(t.Context(), nested, g.Token); err != nil {
					t.Fatal(err)
				}
				if err := nested.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.renew(t)
				wantCode(t, write(t.Context(), tx, g.Token), "ZF001")
			})
		}
	}
}

func TestListsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	armed(t, w) // orders/1001: 33 with sealB, then 34 with sealA
	w.acquire(t, "team/a", 8)
	a, b := w.acquire(t, "team/a", 9), w.acquire(t, "team/b", 4)
	across := w.acquire(t, "y", 1)
	w.exec(t, `CREATE TABLE odd (token bigint); GRANT ALL ON odd TO PUBLIC; SELECT fence.protect('odd', resource => 'x=1,y')`)
	current, stale := "=34."+sealA, "=33."+sealB
	for _, c := range []struct{ list, table, code string }{
		{orders + current, "work", ""},
		{orders + current + "," + orders + stale, "work", "ZF001"},
		{orders + stale + "," + orders + current, "work", "ZF001"},
		{orders + stale + "," + percentEncoded(orders) + current, "work", "ZF001"},
		{percentEncoded(orders) + current + "," + orders + stale, "work", "ZF001"},
		{orders + current + ",team/a", "work", "ZF003"},
		{orders + current + "," + "=1", "work", "ZF003"},
		{orders + current + "=", "work", "ZF003"},
		{orders + "=%33" + current[2:], "work", "ZF003"},
		{percentEncoded(orders) + "=%33" + current[2:], "work", "ZF003"},
		{percentEncoded(orders) + current + ",%zz=1", "work", "ZF003"},
		{"x=1,y=" + across.Presented(), "odd", "ZF004"},
		{"x%3D1%2Cy=" + across.Presented(), "odd", "ZF003"},
		{"team/b=" + b.Presented() + ",team/a=" + a.Presented(), "below", ""},
		{"team/b=" + b.Presented() + ",team%2Fa=8." + sealA, "below", "ZF001"},
		{"team=" + b.Presented(), "below", "ZF004"},
	} {
		_, err := w.session(t, "-c fence.grants="+c.list).Exec(t.Context(), `INSERT INTO `+c.table+` (token) VALUES (1)`)
		if c.code == "" && err != nil || c.code != "" && (err == nil || refusalOf(t, err).Code != c.code) {
			t.Errorf("%s under %s: %v, want %q", c.table, c.list, err, c.code)
		}
	}

	// With several grants the token is that of the first name, whatever their order.
	for _, list := range []string{"team/b=" + b.Presented() + ",team/a=" + a.Presented(), "team/a=" + a.Presented() + ",team/b=" + b.Presented()} {
		var token fence.Token
		if err := connect(t, w.pg.URL, "-c fence.grants="+list).QueryRow(t.Context(), `SELECT fence.check('team/*')`).Scan(&token); err != nil || token != 9 {
			t.Errorf("%s: %d, %v", list, token, err)
		}
	}
}

// Both implementations of percent-decoding give the same result, also for malformed names. Only control characters
// are refused by just one; names never contain them, and they do not travel unencoded.
func TestTheEncodingIsUndoneAlikeInEachDatabase(t *testing.T) {
	t.Parallel()
	w := setup(t)
	pieces := []string{"a", "/", `"`, `\`, `\u0041`, "ä", "東", "%", "%4", "%41", "%25", "%2C", "%2f", "%00", "%0a", "%7F", "%C3%A4", "%C3", "%e6%9d%b1", "%ED%A0%80", "%F0%9F%98%80", "%zz", "💡"}
	random := rand.New(rand.NewPCG(1, 2))
	names := make([]string, 3000)
	for i := range names {
		for range 1 + random.IntN(5) {
			names[i] += pieces[random.IntN(len(pieces))]
		}
	}
	const differ = `SELECT coalesce(string_agg(n, ' '), '') FROM unnest($1::text[]) n WHERE fence.unescape(n) IS DISTINCT FROM fence.unescape_otherwise(n)`
	if got := value[string](t, w, differ, names); got != "" {
		t.Errorf("they differ for %s", got)
	}
	if n := value[int](t, w, `SELECT count(*) FROM unnest($1::text[]) n WHERE fence.unescape(n) IS NOT NULL`, names); n < 300 || n > 2700 {
		t.Errorf("%d of %d names are well-formed: the test shows little", n, len(names))
	}
	for _, off := range []string{"on", "off"} {
		conn := connect(t, w.pg.URL, "-c standard_conforming_strings="+off)
		var got string
		if err := conn.QueryRow(t.Context(), `SELECT fence.unescape($1)`, `%22\%5C"ä`).Scan(&got); err != nil || got != `"\\"ä` {
			t.Errorf("standard_conforming_strings = %s: %q, %v", off, got, err)
		}
	}
}
