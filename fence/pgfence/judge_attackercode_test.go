package pgfence_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// attacker is a login that is fence_writer, owns the schema own and its tables, and has grants of docs/1 and docs/2.
// Its code is own.trap, which counts its calls and records each call that ran with rights that the attacker does not
// have.
type attacker struct {
	world
	conn     *pgx.Conn
	one, two fence.Grant
}

func attack(t *testing.T) attacker {
	t.Helper()
	w := setup(t)
	a := attacker{world: w, conn: ownerOf(t, w), one: w.acquire(t, "docs/1", 34), two: w.acquire(t, "docs/2", 9)}
	run(t, a.conn,
		`CREATE SEQUENCE ran; CREATE SEQUENCE caught; GRANT ALL ON ran, caught TO PUBLIC`, // a sequence is not rolled back
		`CREATE FUNCTION trap() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
		   PERFORM pg_catalog.nextval('own.ran');
		   IF current_user OPERATOR(pg_catalog.<>) session_user THEN PERFORM pg_catalog.nextval('own.caught'); END IF;
		   RETURN true; END $$`)
	return a
}

// sprung reports whether the attacker's code ran since the last call. It fails the test if the code ran with another
// login's rights.
func (a attacker) sprung(t *testing.T, what string) bool {
	t.Helper()
	if value[bool](t, a.world, `SELECT is_called FROM own.caught`) {
		t.Errorf("%s: the attacker's code ran with rights that it has not", what)
	}
	ran := value[bool](t, a.world, `SELECT is_called FROM own.ran`)
	a.exec(t, `ALTER SEQUENCE own.ran RESTART; ALTER SEQUENCE own.caught RESTART`)
	return ran
}

// try runs groups of statements, ignores their errors, and rolls back each group.
func (a attacker) try(t *testing.T, groups ...[]string) {
	t.Helper()
	const nothing = " EXCEPTION WHEN OTHERS THEN NULL; END;\n"
	var do strings.Builder
	do.WriteString("DO $do$ BEGIN\n")
	for _, statements := range groups {
		do.WriteString("BEGIN ")
		for _, sql := range statements {
			do.WriteString("BEGIN EXECUTE $sql$" + sql + "$sql$;" + nothing)
		}
		do.WriteString("RAISE EXCEPTION 'undo';" + nothing)
	}
	run(t, a.conn, do.String()+"END $do$")
}

// protections are the functions, by kind, that fence.protect created for a table of the attacker.
func (a attacker) protections(t *testing.T) string {
	t.Helper()
	run(t, a.conn, `CREATE TABLE items (id bigint, doc text, token bigint) PARTITION BY LIST (id); CREATE TABLE item PARTITION OF items FOR VALUES IN (1)`,
		`SELECT fence.protect('items', per_row => $$'docs/' || id$$, stamp => 'token')`)
	return value[string](t, a.world, `SELECT number::text FROM fence.protected WHERE relation = 'own.items'::regclass`)
}

// presented are the settings under which the attacker tries its tools.
func (a attacker) presented() []string {
	const set = `SELECT pg_catalog.set_config('fence.%s', '%s', true)`
	resource := fmt.Sprintf(set, "resource", "docs/1")
	return []string{
		`SELECT 1`,
		resource + `, pg_catalog.set_config('fence.token', '` + a.one.Presented() + `', true)`,
		resource + `, pg_catalog.set_config('fence.token', '0.` + a.one.Seal.Reveal() + `', true)`,
		fmt.Sprintf(set, "grants", "docs/1="+a.one.Presented()+",docs/2="+a.two.Presented()),
	}
}

// deafTo is the tool that must never work, because every name in the guards is qualified.
const deafTo = "operators and functions"

const trapped = ` LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM own.trap(); RETURN `

// tools are ways to make the table bait (id, token) run the attacker's code when its rows are written.
var tools = []struct {
	name string
	make []string
}{
	{"an immutable cast", []string{
		`CREATE TYPE evil AS ENUM ('1', '2'); CREATE FUNCTION to_int(evil) RETURNS bigint` + trapped + `1; END $$`,
		`CREATE CAST (evil AS bigint) WITH FUNCTION to_int(evil) AS IMPLICIT; CREATE TABLE bait (id evil, token bigint)`,
	}},
	{"a cast to the stamp", []string{
		`CREATE TYPE worse AS ENUM ('1', '2'); CREATE FUNCTION to_worse(bigint) RETURNS worse` + trapped + `'1'; END $$`,
		`CREATE CAST (bigint AS worse) WITH FUNCTION to_worse(bigint) AS IMPLICIT; CREATE TABLE bait (id bigint, token worse)`,
		`CREATE FUNCTION from_worse(worse) RETURNS bigint` + trapped + `1; END $$; CREATE CAST (worse AS bigint) WITH FUNCTION from_worse(worse) AS IMPLICIT`,
	}},
	{"a cast of a composite type", []string{
		`CREATE TYPE pair AS (a int, b int); CREATE FUNCTION of_pair(pair) RETURNS bigint` + trapped + `1; END $$`,
		`CREATE CAST (pair AS bigint) WITH FUNCTION of_pair(pair) AS IMPLICIT; CREATE TABLE bait (id pair, token bigint)`,
	}},
	{"a domain", []string{`CREATE DOMAIN checked AS bigint CHECK (own.trap()); CREATE TABLE bait (id checked, token checked)`}},
	{"a default", []string{`CREATE TABLE bait (id bigint DEFAULT own.trap()::int, token bigint DEFAULT own.trap()::int)`}},
	{"a generated column", []string{
		`CREATE FUNCTION made(bigint) RETURNS bigint` + trapped + `$1; END $$`,
		`CREATE TABLE bait (token bigint, id bigint GENERATED ALWAYS AS (own.made(token)) STORED)`,
	}},
	{"a policy", []string{
		`CREATE TABLE bait (id bigint, token bigint); ALTER TABLE bait ENABLE ROW LEVEL SECURITY; ALTER TABLE bait FORCE ROW LEVEL SECURITY`,
		`CREATE POLICY p ON bait USING (own.trap()) WITH CHECK (own.trap())`,
	}},
	{"a constraint", []string{`CREATE TABLE bait (id bigint CHECK (own.trap()), token bigint)`}},
	{"an index", []string{
		`CREATE FUNCTION keyed(bigint) RETURNS bigint` + trapped + `$1; END $$`,
		`CREATE TABLE bait (id bigint, token bigint); CREATE INDEX ON bait (own.keyed(id)) WHERE own.keyed(id) > 0`,
	}},
	{"a rule", []string{`CREATE TABLE bait (id bigint, token bigint); CREATE RULE r AS ON INSERT TO bait DO ALSO SELECT own.trap()`}},
	{"a trigger", []string{
		`CREATE TABLE bait (id bigint, token bigint)`,
		`CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM own.trap(); RETURN new; END $$`,
		`CREATE TRIGGER zz BEFORE INSERT OR UPDATE ON bait FOR EACH ROW EXECUTE FUNCTION fires()`,
	}},
	{"views called as the transition tables", []string{
		`CREATE TABLE bait (id bigint, token bigint)`,
		`CREATE FUNCTION row_id() RETURNS bigint` + trapped + `1; END $$`,
		`CREATE VIEW new_rows AS SELECT own.row_id() AS id, own.row_id() AS token; CREATE VIEW old_rows AS TABLE new_rows; GRANT ALL ON old_rows, new_rows TO PUBLIC`,
	}},
	{"temporary views called as the transition tables", []string{
		`CREATE TABLE bait (id bigint, token bigint)`,
		`CREATE FUNCTION row_id() RETURNS bigint` + trapped + `1; END $$`,
		`CREATE TEMP VIEW new_rows AS SELECT own.row_id() AS id, own.row_id() AS token; CREATE TEMP VIEW old_rows AS TABLE new_rows`,
		`GRANT ALL ON pg_temp.old_rows, pg_temp.new_rows TO PUBLIC`,
	}},
	{deafTo, []string{
		`CREATE TABLE bait (id bigint, token bigint)`,
		`CREATE FUNCTION yes(bigint, bigint) RETURNS bool` + trapped + `true; END $$; CREATE OPERATOR = (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = yes)`,
		`CREATE FUNCTION same(text, text) RETURNS bool` + trapped + `true; END $$; CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = same)`,
		`CREATE FUNCTION joined(text, text) RETURNS text` + trapped + `'docs/1'; END $$; CREATE OPERATOR || (LEFTARG = text, RIGHTARG = text, FUNCTION = joined)`,
		`CREATE FUNCTION format(text, text, text) RETURNS text` + trapped + `'x'; END $$; CREATE FUNCTION coalesced(text) RETURNS text` + trapped + `'x'; END $$`,
		`CREATE FUNCTION own.left(text, int) RETURNS text` + trapped + `'x'; END $$; CREATE FUNCTION strpos(text, text) RETURNS int` + trapped + `0; END $$`,
		`CREATE FUNCTION current_setting(text, bool) RETURNS text` + trapped + `'x'; END $$; SET search_path = own, pg_catalog`,
	}},
}

// dropTools drops the tools' objects.
const dropTools = `SET search_path = own; DROP TABLE IF EXISTS bait CASCADE; DROP VIEW IF EXISTS old_rows, new_rows, pg_temp.old_rows, pg_temp.new_rows CASCADE;
	DROP DOMAIN IF EXISTS checked; DROP TYPE IF EXISTS evil, worse, pair CASCADE;
	DROP ROUTINE IF EXISTS own.made(bigint), own.keyed(bigint), own.fires(), own.row_id(), own.yes(bigint, bigint), own.same(text, text), own.joined(text, text),
	own.format(text, text, text), own.coalesced(text), own.left(text, int), own.strpos(text, text), own.current_setting(text, bool) CASCADE`

// triggersOf are the ways to put a trigger function on bait: after each row or statement, or before it.
var triggersOf = map[string][]string{
	"rows_": {
		`AFTER INSERT OR UPDATE OR DELETE ON bait FOR EACH STATEMENT`,
		`AFTER INSERT ON bait REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT`,
		`AFTER UPDATE ON bait REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT`,
	},
	"stamp_":     {`BEFORE INSERT OR UPDATE ON bait FOR EACH ROW`},
	"moved_":     {`AFTER INSERT OR DELETE ON bait FOR EACH ROW`},
	"guard":      {`BEFORE INSERT OR UPDATE ON bait FOR EACH STATEMENT`},
	"guard_rows": {`BEFORE INSERT OR UPDATE ON bait FOR EACH STATEMENT`},
	"report":     {`BEFORE INSERT OR UPDATE ON bait FOR EACH STATEMENT`},
	"mark_move":  {`BEFORE UPDATE ON bait FOR EACH STATEMENT`},
}

// Code of a table's owner or writer runs only with its own rights, under every trigger function that it may use.
func TestNoCodeOfAnAttackersRunsUnderATrigger(t *testing.T) {
	t.Parallel()
	a := attack(t)
	number := a.protections(t)
	writes := []string{`INSERT INTO bait DEFAULT VALUES`, `INSERT INTO bait (token) VALUES ('1')`, `UPDATE bait SET token = '2'`, `DELETE FROM bait`}
	for _, tool := range tools {
		run(t, a.conn, tool.make...)
		used := false
		for function, ways := range triggersOf {
			modes := []string{"enforce", "report"}
			if strings.HasSuffix(function, "_") {
				function += number
			} else {
				modes = modes[:1]
			}
			var groups [][]string
			for _, how := range ways {
				for _, mode := range modes {
					create := fmt.Sprintf(`CREATE TRIGGER b %s EXECUTE FUNCTION fence.%s('%s', '', '%s', 'token', '')`, how, function, mode, number)
					for _, present := range a.presented() {
						groups = append(groups, append([]string{present, `INSERT INTO bait (token) VALUES ('1')`, create}, writes...))
					}
				}
			}
			a.try(t, groups...)
			used = a.sprung(t, tool.name+" under "+function) || used
		}
		if !used && tool.name != deafTo {
			t.Errorf("%s never runs, so it proves nothing", tool.name)
		}
		run(t, a.conn, dropTools)
	}
}

// A trigger is looked up in the transaction's snapshot but fires in its current form, so an old snapshot proves
// nothing.
func TestARecreatedTriggerLendsNoRights(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		a := attack(t)
		number := a.protections(t)
		run(t, a.conn, `CREATE TABLE bait (id bigint, token bigint)`, `CREATE FUNCTION row_id() RETURNS bigint`+trapped+`1; END $$`,
			`CREATE VIEW new_rows AS SELECT own.row_id() AS id, own.row_id() AS token; GRANT ALL ON new_rows TO PUBLIC`,
			`CREATE TRIGGER b AFTER INSERT ON bait REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION fence.rows_`+number+`('enforce', '', '')`)
		tx := begin(t, a.conn, level, a.one)
		if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil { // takes the snapshot
			t.Fatal(err)
		}
		a.exec(t, `DROP TRIGGER b ON own.bait; CREATE TRIGGER b AFTER INSERT ON own.bait FOR EACH STATEMENT EXECUTE FUNCTION fence.rows_`+number+`('enforce', '', '')`)
		_, _ = tx.Exec(t.Context(), `INSERT INTO bait VALUES (1)`)
		_ = tx.Rollback(t.Context())
		if a.sprung(t, string(level)); t.Failed() {
			return
		}
	}
}

// The attacker calls each function of the fence that it may call, with every kind of argument that it can create.
func TestNoCodeOfAnAttackersRunsUnderACall(t *testing.T) {
	t.Parallel()
	a := attack(t)
	a.protections(t)
	calls := value[[]string](t, a.world, `SELECT array_agg(p.oid::regprocedure::text) FROM pg_proc p WHERE p.pronamespace IN ('fence'::regnamespace, 'objects'::regnamespace)
		AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype) AND has_function_privilege($1, p.oid, 'EXECUTE')`, a.conn.Config().User)
	for _, tool := range tools {
		run(t, a.conn, tool.make...)
		var groups [][]string
		for _, call := range calls {
			name, types, _ := strings.Cut(strings.TrimSuffix(call, ")"), "(")
			group := []string{``, `INSERT INTO bait (token) VALUES ('1')`}
			for _, hand := range []string{"'own.bait'", "'own'", "'1'", "NULL", "ARRAY['docs/1']"} {
				var args []string
				for _, kind := range strings.FieldsFunc(types, func(r rune) bool { return r == ',' }) {
					args = append(args, hand+"::"+kind)
				}
				group = append(group, `SELECT `+name+`(`+strings.Join(args, ", ")+`)`)
			}
			for _, present := range a.presented()[:2] {
				group[0] = present
				groups = append(groups, slices.Clone(group))
			}
		}
		a.try(t, groups...)
		a.sprung(t, tool.name)
		run(t, a.conn, dropTools)
	}
}

// shadows are objects and settings of a session that could replace names that its guards use.
var shadows = map[string][]string{
	"nothing": nil,
	"temporary tables": {
		`CREATE TEMP TABLE new_rows (id int, doc text, note text, stamp bigint); CREATE TEMP TABLE old_rows (LIKE new_rows)`,
		`CREATE TEMP TABLE pg_proc (); CREATE TEMP TABLE pg_trigger ()`,
	},
	"a search path": {
		`CREATE FUNCTION own.resource_of_1(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'docs/2' $$`,
		`CREATE FUNCTION own.joined(text, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'docs/2'::text $$; CREATE OPERATOR own.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = own.joined)`,
		`CREATE FUNCTION own.yes(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS $$ SELECT true $$; CREATE OPERATOR own.= (LEFTARG = text, RIGHTARG = text, FUNCTION = own.yes)`,
		`CREATE DOMAIN own.text AS pg_catalog.text CHECK (true); SET search_path = own, pg_catalog, public`,
	},
	"backslashes":        {`SET standard_conforming_strings = off; SET escape_string_warning = off; SET backslash_quote = on`},
	"quotes":             {`SET quote_all_identifiers = on`},
	"NULL as an operand": {`SET transform_null_equals = on; SET array_nulls = off`},
	"formats":            {`SET DateStyle = 'German'; SET IntervalStyle = 'iso_8601'; SET extra_float_digits = -15; SET bytea_output = 'escape'; SET TimeZone = 'Asia/Kolkata'`},
	"plans": {
		`SET enable_seqscan = off; SET enable_hashagg = off; SET enable_sort = off; SET plan_cache_mode = force_generic_plan`,
		`SET jit = on; SET jit_above_cost = 0; SET jit_inline_above_cost = 0; SET jit_optimize_above_cost = 0`,
	},
	"constraint exclusion": {`SET constraint_exclusion = on; SET plan_cache_mode = force_custom_plan`},
	"PL/pgSQL":             {`SET plpgsql.extra_warnings = 'all'; SET plpgsql.print_strict_params = on`},
	"roles":                {`SET row_security = on; SET role = fence_writer`},
}

// No object or setting of a session changes the resource for which its rows are judged.
func TestTheJudgedNameIsTheTrueOne(t *testing.T) { //nolint:tparallel // the cases follow each other in one session
	t.Parallel()
	a := attack(t)
	a.exec(t, `CREATE TABLE items (id int PRIMARY KEY, doc text, note text, stamp bigint, presented text, judged text) PARTITION BY LIST (id)`)
	a.exec(t, `CREATE TABLE items1 PARTITION OF items FOR VALUES IN (1, 2, 3, 4); CREATE TABLE items2 PARTITION OF items FOR VALUES IN (5, 6, 7, 8)`)
	a.exec(t, `INSERT INTO items VALUES (1, '1'), (2, '2'); GRANT ALL ON items, items1, items2 TO PUBLIC; GRANT CREATE ON SCHEMA own TO PUBLIC`)
	a.exec(t, `SELECT fence.protect('items', per_row => $$'docs/' || doc$$, stamp => 'stamp')`)
	for name, shadow := range shadows {
		conn := connect(t, a.pg.As(t, "fence_writer"))
		run(t, conn, shadow...)
		for sql, code := range map[string]string{
			`INSERT INTO public.items VALUES (3, '1')`:                                                        "ZF004",
			`INSERT INTO public.items1 VALUES (3, '2'), (4, '1')`:                                             "ZF004",
			`UPDATE public.items SET note = 'n' WHERE id OPERATOR(pg_catalog.=) 1`:                            "ZF004",
			`UPDATE public.items SET doc = '2' WHERE id OPERATOR(pg_catalog.=) 1`:                             "ZF004",
			`UPDATE public.items SET doc = '1' WHERE id OPERATOR(pg_catalog.=) 2`:                             "ZF004",
			`UPDATE public.items SET id = 5 WHERE id OPERATOR(pg_catalog.=) 1`:                                "ZF004",
			`DELETE FROM public.items WHERE id OPERATOR(pg_catalog.=) 1`:                                      "ZF004",
			`INSERT INTO public.items VALUES (3, NULL)`:                                                       "ZF004",
			moveByMerge(`id = 6`, 1):                                                                          "ZF004",
			moveByMerge(`id = 6, doc = '1'`, 2):                                                               "ZF004",
			`INSERT INTO public.items VALUES (3, '2', 'x', 7, 'docs/1', 'docs/1')`:                            "",
			`UPDATE public.items SET id = 5, stamp = 1 WHERE id OPERATOR(pg_catalog.=) 2`:                     "",
			`DELETE FROM public.items WHERE id OPERATOR(pg_catalog.=) 2`:                                      "",
			moveByMerge(`id = 6`, 2):                                                                          "",
			`INSERT INTO public.items SELECT 3, '1', pg_catalog.set_config('fence.resource', 'docs/1', true)`: "ZF001",
		} {
			if t.Run(name+"/"+sql, func(t *testing.T) { wantUnder(t, conn, a.two, sql, code) }); t.Failed() {
				break
			}
		}
		_ = conn.Close(context.WithoutCancel(t.Context()))
		a.exec(t, `DROP DOMAIN IF EXISTS own.text; DROP ROUTINE IF EXISTS own.resource_of_1(text), own.joined(text, text), own.yes(text, text) CASCADE`)
	}
}

// moveByMerge is a MERGE that updates the row id of the table items.
func moveByMerge(set string, id int) string {
	return fmt.Sprintf(`MERGE INTO public.items i USING (VALUES (%d)) s(k) ON i.id OPERATOR(pg_catalog.=) s.k WHEN MATCHED THEN UPDATE SET %s`, id, set)
}

// fence.enforce, and CREATE TABLE in a protected schema, make PostgreSQL parse an expression that another login wrote.
func TestAnExpressionsTextNamesNothingOfItsAuthors(t *testing.T) {
	t.Parallel()
	a := attack(t)
	a.exec(t, `CREATE SCHEMA "€pg_catalog"; GRANT ALL ON SCHEMA "€pg_catalog" TO PUBLIC`)
	const body = ` RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM own.trap(); RETURN 'x'; END $$`
	run(t, a.conn, `CREATE TABLE papers (id int)`, `CREATE FUNCTION "€pg_catalog".f(int)`+body,
		`CREATE TYPE pg_temp.evt AS (a int)`, `CREATE FUNCTION report(pg_temp.evt)`+body, `CREATE CAST (pg_temp.evt AS text) WITH FUNCTION report(pg_temp.evt)`,
		`CREATE TYPE pg_temp."e""t" AS (a int)`, `CREATE FUNCTION report(pg_temp."e""t")`+body, `CREATE CAST (pg_temp."e""t" AS text) WITH FUNCTION report(pg_temp."e""t")`)
	for _, expression := range []string{
		`€pg_catalog.f(id)`, `"€pg_catalog".f(id)`, `'(1)'::evt`, `'(1)'::EVT`, `'(1)'::"evt"`, `('{"(1)"}'::evt[])[id]`, `CAST('(1)' AS evt)::text || id`, `'(1)'::"e""t"`,
		`quote_ident('docs/' || id)`, // its result depends on a setting
	} {
		_, err := a.conn.Exec(t.Context(), `SELECT fence.protect('papers', per_row => $1)`, expression)
		if err == nil || refusalOf(t, err).Code != "22023" {
			t.Errorf("%s: %v", expression, err)
		}
		if a.sprung(t, expression) {
			t.Errorf("%s: the code of its author ran", expression)
		}
	}
}

// A login can't change the registry's entry for another login's table.
func TestOnlyTheOwnerOfATableRegistersIt(t *testing.T) {
	t.Parallel()
	a := attack(t)
	a.exec(t, `CREATE TABLE public.theirs (id int); SELECT fence.protect('public.theirs', resource => 'docs/9'); DELETE FROM fence.registry`)
	run(t, a.conn, `SELECT fence.remember('public.theirs')`)
	if n := value[int](t, a.world, `SELECT count(*) FROM fence.registry`); n != 0 {
		t.Error("registered by a stranger")
	}
}

// If a column's collation treats different texts as equal, they are still different resources.
func TestTextsThatACollationCallsEqualAreDifferentResources(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)`)
	w.exec(t, `CREATE TABLE items (id int PRIMARY KEY, doc text COLLATE loose, stamp bigint) PARTITION BY LIST (id)`)
	w.exec(t, `CREATE TABLE items1 PARTITION OF items FOR VALUES IN (1, 2, 3); CREATE TABLE items2 PARTITION OF items FOR VALUES IN (4, 5, 6)`)
	w.exec(t, `INSERT INTO items VALUES (1, 'e'), (2, 'É'); GRANT ALL ON items, items1, items2 TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('items', per_row => $$'docs/' || doc$$, stamp => 'stamp')`)
	if !value[bool](t, w, `SELECT (SELECT doc FROM items WHERE id = 1) = (SELECT doc FROM items WHERE id = 2)`) {
		t.Fatal("the collation tells the two apart, so the test proves nothing")
	}
	g := w.acquire(t, "docs/e", 34)
	w.acquire(t, "docs/É", 9)
	conn := w.session(t)
	for sql, code := range map[string]string{
		`UPDATE items SET stamp = 1 WHERE id = 1`:                                             "",
		`INSERT INTO items VALUES (3, 'e')`:                                                   "",
		`UPDATE items SET id = 4 WHERE id = 1`:                                                "",
		moveByMerge(`id = 4`, 1):                                                              "",
		`INSERT INTO items VALUES (3, 'E')`:                                                   "ZF004",
		`INSERT INTO items VALUES (3, 'e'), (4, 'é')`:                                         "ZF004",
		`UPDATE items SET stamp = 1 WHERE id = 2`:                                             "ZF004",
		`UPDATE items SET stamp = 1 WHERE doc = 'e'`:                                          "ZF004",
		`UPDATE items SET doc = 'É' WHERE id = 1`:                                             "ZF004",
		`UPDATE items SET doc = 'e' WHERE id = 2`:                                             "ZF004",
		`UPDATE items SET id = 4, doc = 'É' WHERE id = 1`:                                     "ZF004",
		`DELETE FROM items WHERE doc = 'e'`:                                                   "ZF004",
		moveByMerge(`id = 4, doc = 'É'`, 1):                                                   "ZF004",
		moveByMerge(`id = 4, doc = 'e'`, 2):                                                   "ZF004",
		`INSERT INTO items VALUES (1, 'É') ON CONFLICT (id) DO UPDATE SET doc = excluded.doc`: "ZF004",
	} {
		wantUnder(t, conn, g, sql, code)
	}
}
