package pgfence_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestRightsAreAsNarrowAsTheRoles(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	gatewayOnly := []string{
		`SELECT fence.raise('x', 1, NULL, '')`, `SELECT fence.drain('x', 1, NULL)`, `SELECT fence.revoke('x')`,
		`SELECT fence.next_epoch(1)`, `SELECT fence.check_issued('x', 1)`, `SELECT FROM fence.fences`,
	}
	nobody := []string{
		`SELECT FROM fence.resources`, `UPDATE fence.resources SET token = 1`, `DELETE FROM fence.resources`,
		`INSERT INTO fence.unsealed VALUES ('*')`, `UPDATE fence.epochs SET epoch = 1`, `TRUNCATE fence.resources`,
		`SELECT fence.verify('x', 1, NULL, 'issued')`, `SELECT fence.verify_settings(NULL)`, `SELECT fence.raise_unsealed('x', 1)`,
		`SELECT fence.end_holders(1)`, `CREATE TABLE fence.mine ()`, `ALTER FUNCTION fence.guard() RENAME TO x`,
	}
	denied := func(address string, statements ...string) {
		t.Helper()
		conn := connect(t, address)
		for _, sql := range statements {
			if _, err := conn.Exec(t.Context(), sql); err == nil {
				t.Errorf("allowed: %s", sql)
			} else if code := refusalOf(t, err).Code; code != "42501" {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	denied(w.pg.WriterURL, append(gatewayOnly, nobody...)...)
	denied(w.pg.OtherURL, append(gatewayOnly, append(nobody, `SELECT fence.use('x', '1')`, `SELECT fence.check()`)...)...)
	denied(w.pg.GatewayURL, append(nobody, `SELECT fence.use('x', '1')`)...)

	// A guarded write needs the grant, but no right in the schema fence.
	conn := connect(t, w.pg.OtherURL)
	if err := attempt(t, conn, pgx.ReadCommitted, orders, g.Presented()); err != nil {
		t.Error(err)
	}
}

// An object of the session can't replace one that the guard uses by name.
func TestTheGuardIsDeafToTheSearchPath(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	w.exec(t, `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	conn := w.session(t)
	for _, sql := range []string{
		`CREATE FUNCTION public.starts_with(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'`,
		`CREATE FUNCTION public.yes(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'`,
		`CREATE FUNCTION public.yes(bytea, bytea) RETURNS bool LANGUAGE sql AS 'SELECT true'`,
		`CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.yes)`,
		`CREATE OPERATOR public.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = public.yes)`,
		`SET search_path = public, pg_catalog`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, orders, "34."+sealB), "ZF003")
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, "other", g.Presented()), "ZF004")
	if err := attempt(t, conn, pgx.ReadCommitted, orders, g.Presented()); err != nil {
		t.Error(err)
	}
}

// SECURITY DEFINER functions of fence_owner have no parameters of relations, or of types whose code another login can
// define. The exceptions are called by a table's owner and read only the catalog.
func TestFunctionsWithTheFencesRightsTakeFacts(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE items (id int, token bigint) PARTITION BY LIST (id); CREATE TABLE item PARTITION OF items FOR VALUES IN (1)`)
	w.exec(t, `SELECT fence.protect('items', per_row => $$'docs/' || id$$, stamp => 'token')`)
	for _, fault := range dangerousFunctions(t, w) {
		t.Error(fault)
	}

	// The test finds any other such function.
	for _, planted := range []string{"anyelement", "regclass", "name[], anyarray", "work", "text, work"} {
		w.exec(t, `CREATE FUNCTION fence.planted(`+planted+`) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'SELECT 1'`)
		if n := len(dangerousFunctions(t, w)); n != 1 {
			t.Errorf("planted(%s): %d faults found", planted, n)
		}
		w.exec(t, `DROP FUNCTION fence.planted`)
	}
	w.exec(t, `CREATE FUNCTION fence.planted(text) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'`)
	if n := len(dangerousFunctions(t, w)); n != 1 {
		t.Errorf("planted without a search_path: %d faults found", n)
	}
}

// dangerousFunctions lists what is wrong with functions that have the rights of fence_owner.
func dangerousFunctions(t *testing.T, w world) (faults []string) {
	t.Helper()
	facts := regexp.MustCompile(`^(text|bigint|integer|boolean|bytea|interval|name|timestamp with time zone|uuid|jsonb)(\[\])?$`)
	exceptions := []string{
		"fence.remember(regclass)", "fence.leave(regclass)", "fence.make_rows(regclass,name)", // called by the owner of a table
		"fence.remember_schema(regnamespace,text,text,text,text,name)", // called by the owner of a schema
	}
	rows := regexp.MustCompile(`^objects\.(versions|stages)$`) // of fencegate's tables, between functions that only it may call
	onRows := regexp.MustCompile(`^fence\.(rows|stamp|moved|resource_of)_`)
	// They have no search_path of their own, so every name in them, and in the functions that they call, is
	// qualified.
	unpinned := []string{
		"fence.arm(text,bigint,bytea,text,interval)", `fence."check"(text)`, "fence.guard()", "fence.guard_rows()", "fence.judge(text)",
		"fence.judge_rows(text,text[],text[],bigint[],text)", "fence.judge_stamp(text)", "fence.mark_move()", "fence.server_run()", "fence.use(text,text)", "fence.use(text[],text[])",
	}
	const list = `SELECT array_agg(p.oid::regprocedure::text || ' ' || p.prorettype::regtype || ' ' ||
		CASE WHEN has_function_privilege('public', p.oid, 'EXECUTE') OR has_function_privilege('fence_writer', p.oid, 'EXECUTE') OR has_function_privilege('fence_protector', p.oid, 'EXECUTE')
		  OR has_function_privilege('fence_gateway', p.oid, 'EXECUTE') THEN 'called' ELSE 'nobody''s' END || ' ' || coalesce(p.proconfig @> '{"search_path=pg_catalog, pg_temp"}', false) ORDER BY 1) FROM pg_proc p
		WHERE p.pronamespace IN ('fence'::regnamespace, 'objects'::regnamespace) AND p.prosecdef`
	for _, line := range value[[]string](t, w, list) {
		call, rest, _ := strings.Cut(line, ") ")
		name, types, _ := strings.Cut(call, "(")
		call += ")"
		if strings.HasSuffix(rest, "false") && strings.HasPrefix(name, "fence.") && !slices.Contains(unpinned, call) {
			faults = append(faults, call+" has no search_path of its own")
		}
		for _, kind := range strings.FieldsFunc(types, func(r rune) bool { return r == ',' }) {
			inside := rows.MatchString(kind) && strings.Contains(rest, " nobody's ")
			if !facts.MatchString(kind) && !inside && !slices.Contains(exceptions, call) {
				faults = append(faults, call+" runs with the fence's rights, and takes a "+kind)
			}
		}
		if onRows.MatchString(name) {
			faults = append(faults, call+" runs with the fence's rights on a user's rows")
		}
	}
	return faults
}
