package pgfence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// perRow is a world whose table `items` has a resource for each row, and grants of two of them.
func perRow(t *testing.T) (w world, one, two fence.Grant) {
	t.Helper()
	w = setup(t)
	w.exec(t, `CREATE TABLE items (id bigint PRIMARY KEY, doc text, note text)`)
	w.exec(t, `INSERT INTO items VALUES (1, '1', 'a'), (2, '2', 'b'); GRANT ALL ON items TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('items', per_row => $$'docs/' || doc$$)`)
	return w, w.acquire(t, "docs/1", 5), w.acquire(t, "docs/2", 5)
}

// wantUnder runs a statement under a grant and expects a SQLSTATE, or success if it is empty. Nothing is committed.
func wantUnder(t *testing.T, conn *pgx.Conn, g fence.Grant, sql, code string) {
	t.Helper()
	tx := begin(t, conn, pgx.ReadCommitted, g)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	switch {
	case code == "" && err != nil:
		t.Errorf("%s: %v", sql, err)
	case code != "" && err == nil:
		t.Errorf("%s: done, want %s", sql, code)
	case code != "" && refusalOf(t, err).Code != code:
		t.Errorf("%s: %v, want %s", sql, err, code)
	}
}

func TestEachRowNeedsTheGrantOfItsOwnResource(t *testing.T) {
	t.Parallel()
	w, one, _ := perRow(t)
	w.acquire(t, "docs/3", 1)
	conn := connect(t, w.pg.OtherURL) // a writer needs no right in the schema fence
	for sql, code := range map[string]string{
		`INSERT INTO items VALUES (3, '1')`:                                                   "",
		`INSERT INTO items VALUES (3, '1'), (4, '2')`:                                         "ZF004",
		`INSERT INTO items VALUES (3, NULL)`:                                                  "ZF004",
		`INSERT INTO items VALUES (3, '*')`:                                                   "ZF004", // otherwise '*' would match any resource below docs/
		`INSERT INTO items VALUES (3, E'\n')`:                                                 "ZF004",
		`INSERT INTO items VALUES (3, repeat('x', 600))`:                                      "ZF004",
		`INSERT INTO items VALUES (3, 'never armed')`:                                         "ZF004",
		`UPDATE items SET note = 'n' WHERE id = 1`:                                            "",
		`UPDATE items SET note = 'n'`:                                                         "ZF004",
		`UPDATE items SET doc = '2' WHERE id = 1`:                                             "ZF004", // NEW needs the other resource
		`UPDATE items SET doc = '1' WHERE id = 2`:                                             "ZF004", // OLD needs the other resource
		`DELETE FROM items WHERE id = 1`:                                                      "",
		`DELETE FROM items`:                                                                   "ZF004",
		`TRUNCATE items`:                                                                      "ZF004",
		`INSERT INTO items VALUES (2) ON CONFLICT DO NOTHING`:                                 "",
		`SELECT * FROM items FOR UPDATE`:                                                      "",
		`WITH w AS (DELETE FROM items WHERE id = 2) SELECT`:                                   "ZF004",
		`MERGE INTO items i USING (VALUES (2)) s(id) ON i.id = s.id WHEN MATCHED THEN DELETE`: "ZF004",
		`INSERT INTO items VALUES (2, '1') ON CONFLICT (id) DO UPDATE SET doc = '1'`:          "ZF004",
		`INSERT INTO items SELECT 3, set_config('fence.resource', 'docs/' || d, true) || d FROM (VALUES ('')) x(d)`:                       "ZF004",
		`INSERT INTO items SELECT g, right(set_config('fence.resource', 'docs/' || d, true), 1) FROM (VALUES (3, '3'), (4, '1')) x(g, d)`: "ZF004",
	} {
		wantUnder(t, conn, one, sql, code)
	}
	wantUnder(t, conn, fence.Grant{Resource: "docs/1", Seal: one.Seal}, `UPDATE items SET note = 'n' WHERE id = 1`, "") // token 0
	err := under(t, conn, one, `UPDATE items SET note = 'n' WHERE id = 2`)
	if pg := refusalOf(t, err); pg.Detail != `{"resource":"docs/1","needed":"docs/2","relation":"public.items"}` {
		t.Errorf("DETAIL %s", pg.Detail)
	}
	w.acquire(t, "docs/1", 6)
	wantUnder(t, conn, one, `UPDATE items SET note = 'n' WHERE id = 1`, "ZF001")
	err = under(t, conn, fence.Grant{Resource: "docs/1", Seal: one.Seal}, `UPDATE items SET note = 'n' WHERE id = 1`)
	if pg := refusalOf(t, err); pg.Code != "ZF001" || pg.Message != `stale fencing token, presented by its seal alone, for "docs/1": the fence stands at 6` {
		t.Errorf("a seal without its token: %v", err)
	}
}

func TestSeveralGrantsCoverTheirRows(t *testing.T) {
	t.Parallel()
	w, one, two := perRow(t)
	tx, err := w.session(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := pgfence.Use(t.Context(), tx, one, two); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`UPDATE items SET note = 'both'`, `UPDATE items SET doc = CASE doc WHEN '1' THEN '2' ELSE '1' END`, `DELETE FROM items`} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	_, err = tx.Exec(t.Context(), `INSERT INTO items VALUES (3, '3')`)
	wantCode(t, err, "ZF004")
	_ = tx.Rollback(t.Context())
}

// A row's resource may contain whatever a resource name may contain.
func TestARowsResourceMayHaveAnyName(t *testing.T) {
	t.Parallel()
	w, _, _ := perRow(t)
	conn := w.session(t)
	for _, name := range []string{`ä/日本`, `100%`, `o'br\ien "x"`, `a,b=c`} {
		w.exec(t, `DELETE FROM fence.resources WHERE resource = $1`, "docs/"+name)
		g := w.acquire(t, "docs/"+name, 1)
		tx := begin(t, conn, pgx.ReadCommitted, g)
		if _, err := tx.Exec(t.Context(), `INSERT INTO items VALUES (9, $1)`, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = tx.Rollback(t.Context())
	}
}

// The guard judges the stored row, not its state before a BEFORE trigger or under the statement's own settings.
func TestTheStoredRowIsJudged(t *testing.T) {
	t.Parallel()
	w, one, _ := perRow(t)
	w.exec(t, `CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.doc := '2'; RETURN NEW; END $$`)
	w.exec(t, `CREATE TRIGGER zzz BEFORE INSERT OR UPDATE ON items FOR EACH ROW EXECUTE FUNCTION late()`)
	conn := w.session(t)
	wantUnder(t, conn, one, `INSERT INTO items VALUES (3, '1')`, "ZF004")
	wantUnder(t, conn, one, `UPDATE items SET note = 'x' WHERE id = 1`, "ZF004")

	// Expressions with functions beyond PostgreSQL's own use a generated column.
	w.exec(t, `CREATE FUNCTION named(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN 'docs/' || $1`)
	w.exec(t, `CREATE TABLE made (id int, doc text, resource text GENERATED ALWAYS AS (named(doc)) STORED); GRANT ALL ON made TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('made', per_row => 'resource')`)
	wantUnder(t, conn, one, `INSERT INTO made VALUES (1, '1')`, "")
	wantUnder(t, conn, one, `INSERT INTO made VALUES (1, '2')`, "ZF004")
}

func TestRowsOfPartitionsAndChildren(t *testing.T) {
	t.Parallel()
	w, one, two := perRow(t)
	w.exec(t, `CREATE TABLE parted (id int, doc text, more text) PARTITION BY LIST (id)`)
	w.exec(t, `CREATE TABLE p1 PARTITION OF parted FOR VALUES IN (1); CREATE TABLE p2 (more text, gone int, doc text, id int); ALTER TABLE p2 DROP gone`)
	w.exec(t, `ALTER TABLE parted ATTACH PARTITION p2 FOR VALUES IN (2)`)
	w.exec(t, `CREATE TABLE par (id int, doc text); CREATE TABLE kid (more int) INHERITS (par)`)
	w.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC`)
	w.exec(t, `INSERT INTO parted VALUES (1, '1'), (2, '2'); INSERT INTO par VALUES (1, '1'); INSERT INTO kid VALUES (2, '2')`)
	w.exec(t, `SELECT fence.protect('parted', per_row => $$'docs/' || doc$$), fence.protect('par', per_row => $$'docs/' || doc$$)`)
	conn := w.session(t)
	for sql, code := range map[string]string{
		`INSERT INTO parted VALUES (1, '1'), (2, '1')`:   "",
		`INSERT INTO parted VALUES (1, '1'), (2, '2')`:   "ZF004",
		`INSERT INTO p2 (id, doc) VALUES (2, '1')`:       "",
		`INSERT INTO p2 (id, doc) VALUES (2, '2')`:       "ZF004",
		`UPDATE parted SET id = 2 WHERE id = 1`:          "", // the row moves
		`UPDATE parted SET id = 1 WHERE id = 2`:          "ZF004",
		`UPDATE parted SET id = 2, doc = 2 WHERE id = 1`: "ZF004",
		`DELETE FROM parted`:                             "ZF004",
		`DELETE FROM p1`:                                 "",
		`DELETE FROM p2`:                                 "ZF004",
		`TRUNCATE p1`:                                    "ZF004",
		`UPDATE par SET id = 3`:                          "ZF004",
		`UPDATE ONLY par SET id = 3`:                     "",
		`DELETE FROM kid`:                                "ZF004",
	} {
		wantUnder(t, conn, one, sql, code)
	}
	wantUnder(t, conn, two, `DELETE FROM kid; UPDATE kid SET id = 3`, "")
	if got := uncovered(t, w); got != "" {
		t.Errorf("uncovered: %s", got)
	}
}

// The expression runs with the fence's rights, so it may only use PostgreSQL's own functions.
func TestAnExpressionUsesWhatPostgreSQLBrings(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE FUNCTION mine(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1'; CREATE TYPE pair AS (a int, b int)`)
	w.exec(t, `CREATE DOMAIN word AS text CHECK (mine(VALUE) <> '')`)
	w.exec(t, `CREATE TABLE e (id bigint, "Odd ""name" text, at timestamptz, d date, w word, p pair, js jsonb,
		r real, f float, iv interval, b bytea, m money, pt point, h time, x xml, u uuid, c char(3), v varchar(9), n numeric(9, 2), yes bool, k "char", tags text[], fs float[])`)
	for expression, want := range map[string]string{
		`'e/' || id`:                            "",
		`id`:                                    "",
		`concat_ws('/', 'e', 'x')`:              "IMMUTABLE",
		`'e/' || "Odd ""name"`:                  "",
		`'e/' || (id / 100)`:                    "",
		`'e/' || coalesce(js ->> 'a', 'b')`:     "",
		`CASE WHEN id < 5 THEN 'e/' || id END`:  "",
		`'e/' || at`:                            "IMMUTABLE",
		`'e/' || current_user`:                  "IMMUTABLE",
		`current_setting('fence.resource')`:     "IMMUTABLE",
		`'e/' || (SELECT 1)`:                    "subquery",
		`'e/' || nowhere`:                       "nowhere",
		`'constant'`:                            "no column",
		`e::text`:                               "e",
		`id)::text), ((id`:                      "not one expression",
		`id --`:                                 "",
		`public.mine('e/' || id)`:               "generated column",
		`'e/' || w`:                             "type does not come",
		`'e/' || (p).a`:                         "does not come",
		`max(id)`:                               "aggregate",
		`(fence_probe IS NULL)`:                 "whole row",
		`'e/' || tableoid`:                      "system column",
		`id)); DROP TABLE e; --`:                "",
		`'e/' || f`:                             "type double precision",
		`'e/' || r`:                             "type real",
		`'e/' || (f * 10)::int`:                 "type double precision",
		`'e/' || (id * 2::float)`:               "type double precision",
		`'e/' || (iv > iv)`:                     "type interval",
		`'e/' || (d - d + iv)`:                  "interval",
		`'e/' || b::text`:                       "type bytea",
		`encode(b, 'escape')`:                   "type bytea",
		`'e/' || m`:                             "IMMUTABLE",
		`'e/' || (m * 2 > m)`:                   "type money",
		`'e/' || pt::text`:                      "type point",
		`'e/' || h`:                             "type time without time zone",
		`'e/' || d`:                             "IMMUTABLE",
		`'e/' || (at > '2026-01-01')`:           "type timestamp with time zone",
		`'e/' || date_part('year', d)`:          "type double precision",
		`'e/' || (fs)[1]`:                       "type double precision",
		`CASE WHEN f IS NULL THEN doc END`:      "doc",
		`CASE WHEN f IS NULL THEN v END`:        "type double precision",
		`'e/' || (pt IS NULL)`:                  "type point",
		`'e/' || extract(year FROM d)`:          "",
		`'e/' || (d - date '2026-01-01')`:       "",
		`'e/' || u`:                             "",
		`'e/' || c || v || n || yes || k::text`: "",
		`'e/' || tags[1]`:                       "",
		`CASE WHEN id IN (1, 2) OR v IN ('a', 'b') OR yes IS TRUE OR d IS NULL THEN v ELSE lower(v) END`: "",
		``: "syntax",
	} {
		_, err := w.admin.Exec(t.Context(), `SELECT fence.protect('e', per_row => $1)`, expression)
		switch {
		case expression == `id)); DROP TABLE e; --`:
			if err == nil || !value[bool](t, w, `SELECT to_regclass('e') IS NOT NULL`) {
				t.Errorf("%s: %v", expression, err)
			}
		case want == "" && err != nil:
			t.Errorf("%s: %v", expression, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", expression, err, want)
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM pg_class WHERE relname = 'fence_probe'`); n != 0 {
		t.Error("the probe stays")
	}
}

// The row guards run as fence_owner: an object of the session can't replace one that they use by name.
func TestTheRowGuardsAreDeafToTheSearchPath(t *testing.T) {
	t.Parallel()
	w, one, _ := perRow(t)
	w.exec(t, `ALTER TABLE items ADD stamp bigint; SELECT fence.protect('items', per_row => $$'docs/' || doc$$, stamp => 'stamp')`)
	w.exec(t, `GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE TABLE stolen (who text); GRANT ALL ON stolen TO PUBLIC`)
	conn := w.session(t)
	const trap = `LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.stolen VALUES (current_user); RETURN `
	for _, sql := range []string{
		`CREATE FUNCTION public.yes(text, text) RETURNS bool ` + trap + `true; END $$`,
		`CREATE FUNCTION public.yes(bigint, bigint) RETURNS bool ` + trap + `true; END $$`,
		`CREATE FUNCTION public.no(text, text) RETURNS bool ` + trap + `false; END $$`,
		`CREATE FUNCTION public.both(text, text) RETURNS text ` + trap + `'docs/1'; END $$`,
		`CREATE FUNCTION public.concat(text, text) RETURNS text ` + trap + `''; END $$`,
		`CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.yes)`,
		`CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.yes)`,
		`CREATE OPERATOR public.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = public.no)`,
		`CREATE OPERATOR public.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = public.yes)`,
		`CREATE OPERATOR public.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = public.both)`,
		`SET search_path = public, pg_catalog`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	wantUnder(t, conn, one, `INSERT INTO items VALUES (3, '2')`, "ZF004")
	wantUnder(t, conn, one, `UPDATE items SET doc = '2' WHERE id OPERATOR(pg_catalog.=) 1`, "ZF004")
	tx := begin(t, conn, pgx.ReadCommitted, one)
	if _, err := tx.Exec(t.Context(), `INSERT INTO items VALUES (3, '1'); UPDATE items SET note = 'n' WHERE id OPERATOR(pg_catalog.=) 1`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Error(err)
	}
	var stolen string
	if err := tx.QueryRow(t.Context(), `SELECT pg_catalog.count(*)::text FROM public.stolen`).Scan(&stolen); err != nil || stolen != "0" {
		t.Errorf("code of the session ran %s times, %v", stolen, err)
	}
	_ = tx.Rollback(t.Context())
}

// A trigger function can be used on any table, and a column's type can change: another login's cast or domain never
// runs with the fence's rights.
func TestNoCastOfAnOwnersRunsInTheRowGuards(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE SEQUENCE ran; GRANT ALL ON ran TO PUBLIC; CREATE TYPE evil AS ENUM ('1')`) // a sequence is not rolled back
	const trap = ` LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('public.ran'); RETURN `
	w.exec(t, `CREATE FUNCTION to_int(evil) RETURNS bigint`+trap+`1; END $$; CREATE CAST (evil AS bigint) WITH FUNCTION to_int(evil) AS IMPLICIT`)
	w.exec(t, `CREATE FUNCTION to_evil(bigint) RETURNS evil`+trap+`'1'; END $$; CREATE CAST (bigint AS evil) WITH FUNCTION to_evil(bigint) AS IMPLICIT`)
	w.exec(t, `CREATE FUNCTION holds(bigint) RETURNS boolean`+trap+`true; END $$; CREATE DOMAIN checked AS bigint CHECK (holds(VALUE))`)
	w.exec(t, `CREATE TABLE victim (doc bigint, stamp bigint); SELECT fence.protect('victim', per_row => $$'docs/' || doc$$, stamp => 'stamp')`)
	one, two := w.acquire(t, "docs/1", 34), w.acquire(t, "docs/2", 9)
	number := value[string](t, w, `SELECT number::text FROM fence.protected WHERE relation = 'victim'::regclass`)
	for _, columns := range []string{"doc evil, stamp bigint", "doc bigint, stamp evil", "doc checked, stamp bigint", "doc bigint, stamp checked"} {
		for _, stamp := range []string{"", `CREATE TRIGGER s BEFORE INSERT OR UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION fence.stamp_` + number + `('stamp', '')`} {
			w.exec(t, `DROP TABLE IF EXISTS mine; CREATE TABLE mine (`+columns+`); INSERT INTO mine VALUES ('1', '1'); ALTER SEQUENCE ran RESTART; `+stamp)
			w.exec(t, `CREATE TRIGGER u AFTER UPDATE ON mine REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION fence.rows_`+number+`('enforce', '', 'stamp')`)
			for _, grants := range [][]fence.Grant{{one}, {one, two}} {
				tx, err := w.session(t).Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := pgfence.Use(t.Context(), tx, grants...); err != nil {
					t.Fatal(err)
				}
				_ = statement(`GRANT ALL ON mine TO PUBLIC`)(t.Context(), connect(t, w.pg.URL))
				if _, err := tx.Exec(t.Context(), `UPDATE mine SET doc = doc`); err == nil {
					t.Errorf("%s: done", columns)
				}
				_ = tx.Rollback(t.Context())
			}
			if value[bool](t, w, `SELECT is_called FROM ran`) {
				t.Errorf("%s: code ran", columns)
			}
		}
	}
}
