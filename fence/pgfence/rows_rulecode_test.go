package pgfence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// ownerOf is a login that is fence_protector and owns the schema own.
func ownerOf(t *testing.T, w world) *pgx.Conn {
	t.Helper()
	conn := connect(t, w.pg.As(t, "fence_protector"))
	w.exec(t, `CREATE SCHEMA own AUTHORIZATION `+pgx.Identifier{conn.Config().User}.Sanitize())
	w.exec(t, `GRANT USAGE ON SCHEMA own TO PUBLIC`)
	run(t, conn, `SET search_path = own`)
	return conn
}

func run(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if err := statement(sql)(t.Context(), conn); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// No table's name can end the quotes in the code that is generated for it.
func TestNamesAreNoCode(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := ownerOf(t, w)
	for _, name := range []string{`$b$`, `$f$; SELECT 1; --`, `a'b`, `%1$I`, `$$`, `\`, `x" `} {
		column := pgx.Identifier{name}.Sanitize()
		run(t, conn, `CREATE TABLE odd (`+column+` bigint, id text)`)
		for _, how := range []string{`under => 'docs/', stamp => $1`, `per_row => $$'docs/' || id$$, stamp => $1`} {
			if _, err := conn.Exec(t.Context(), `SELECT fence.protect('odd', `+how+`)`, name); err != nil {
				t.Errorf("%s, %s: %v", name, how, err)
				continue
			}
			g := w.acquire(t, "docs/1", fence.Token(1+value[int64](t, w, `SELECT coalesce(max(token), 0) FROM fence.resources WHERE resource = 'docs/1'`)))
			wantUnder(t, conn, g, `INSERT INTO own.odd (id) VALUES ('1')`, "")
		}
		run(t, conn, `DROP TABLE odd`)
	}
	run(t, conn, `CREATE TABLE odd ("$b$" text, "a'b" text)`, `SELECT fence.protect('odd', per_row => '"$b$" || "a''b"')`)
	wantUnder(t, conn, w.acquire(t, "xy", 1), `INSERT INTO own.odd VALUES ('x', 'y')`, "")
}

// A login that creates a table in a protected schema, or makes a table enforce, runs the expression of its rule, but
// no other code of the login that wrote the rule.
func TestARowsRuleIsAnExpressionAndNothingElse(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.install_event_triggers()`)
	conn := ownerOf(t, w)
	run(t, conn, `CREATE FUNCTION own.spy(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'CREATE TABLE own.spied()'; RETURN 'x'; END $$`)
	for _, text := range []string{
		`'x' || id)::text)); CREATE TABLE own.spied(); SELECT (coalesce(('x'`, `id), (id`, `id) --`, `id /*`, `own.spy('x') || id`,
		`"own"."spy"('x') || id`, `own . spy('x') || id`, `$$x$$ || id`, `'\' || own.spy('x') || '' || id`, `id || 'x`, `id || "x`, `(id`, `id)`,
		`'x' OPERATOR(own.||) id`, `pg_catalog.own.spy('x') || id`, `id::own.kind`,
	} {
		_, err := conn.Exec(t.Context(), `SELECT fence.protect_schema('own', per_row => $1)`, text)
		if err == nil {
			t.Errorf("a schema may have the rule %s", text)
			if err := statement(`CREATE TABLE own.new (id text)`)(t.Context(), connect(t, w.pg.URL)); err == nil {
				w.exec(t, `DROP TABLE own.new`)
			}
		} else {
			wantCode(t, err, "22023")
		}
	}
	run(t, conn, `SELECT fence.protect_schema('own', per_row => $x$'a.b;--"' || pg_catalog.lower((id)) || coalesce(id, 'it''s')$x$)`)
	w.exec(t, `CREATE TABLE own.new (id text)`)
	if got := value[bool](t, w, `SELECT to_regclass('own.spied') IS NULL AND EXISTS (SELECT FROM fence.protected WHERE relation = 'own.new'::regclass AND complete)`); !got {
		t.Error("a rule was more than an expression, or the good one was not used")
	}
}

func TestATriggerOfSomebodysOwnBreaksNoView(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := ownerOf(t, w)
	run(t, conn, `CREATE TABLE odd (id int); CREATE TABLE odder (id int)`,
		`CREATE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON odd FOR EACH STATEMENT EXECUTE FUNCTION fence.guard_rows('x', 'no number')`,
		`CREATE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON odder FOR EACH STATEMENT EXECUTE FUNCTION fence.report('x', '', '', 'a.b.c.d', '')`)
	if got := value[int](t, w, `SELECT count(p)::int FROM fence.protected p`); got != 3 {
		t.Errorf("%d guards, want 3", got)
	}
	value[int](t, w, `SELECT count(u)::int FROM fence.uncovered u`)
}

// Report mode does not wait for the locks that an enforcing guard waits for, and an expression that fails does not
// fail the statement.
func TestReportModeEndsNoStatement(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `INSERT INTO fence.unsealed VALUES ('docs/*')`)
	w.exec(t, `CREATE TABLE items (id int, doc text); GRANT ALL ON items TO PUBLIC; CREATE TABLE ratios (LIKE items); GRANT ALL ON ratios TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('items', under => 'docs/', mode => 'report'), fence.protect('ratios', per_row => $$'docs/' || 1 / id$$, mode => 'report')`)

	raising := begin(t, w.session(t), pgx.ReadCommitted, fence.Grant{Resource: "docs/1", Token: 7})
	defer func() { _ = raising.Rollback(t.Context()) }()
	if _, err := raising.Exec(t.Context(), `SELECT fence.use('docs/1', '7')`); err != nil {
		t.Fatal(err)
	}
	conn := w.session(t, "-c statement_timeout=30s")
	for _, sql := range []string{`INSERT INTO items VALUES (1)`, `INSERT INTO ratios VALUES (1)`} {
		if err := under(t, conn, fence.Grant{Resource: "docs/1", Token: 8}, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	g := w.acquire(t, "docs/2", 1)
	log := reported(t, w, g, `INSERT INTO ratios VALUES (0)`)
	if len(log) != 1 || log[0].Code != "22012" {
		t.Errorf("%d lines in the log, want one of 22012", len(log))
	}
	w.exec(t, `SELECT fence.enforce('ratios')`)
	wantUnder(t, conn, g, `INSERT INTO ratios VALUES (0)`, "22012")
}

func TestTwoMayTidyAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE items (id int); SELECT fence.protect('items', per_row => $$'docs/' || id$$, mode => 'report'); DROP TABLE items`)
	one, two := connect(t, w.pg.URL), connect(t, w.pg.URL)
	run(t, one, `BEGIN; SELECT fence.tidy()`)
	done := make(chan error, 1)
	go func() { done <- statement(`SELECT fence.tidy()`)(t.Context(), two) }()
	w.waitFor(t, "the second one waits", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')`, two.PgConn().PID())
	run(t, one, `COMMIT`)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A rule rewrites writes of a view into others, which the view's guard does not see.
func TestARuleOnAGuardedViewIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE VIEW v AS SELECT 1 AS id; CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	w.exec(t, `CREATE TRIGGER i INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION nothing(); SELECT fence.protect('v', resource => 'docs/1'), fence.install_event_triggers()`)
	_, err := w.admin.Exec(t.Context(), `CREATE RULE away AS ON INSERT TO v DO INSTEAD INSERT INTO work (note) VALUES ('x')`)
	if err == nil {
		t.Fatal("a rule was put on a guarded view")
	}
	wantCode(t, err, "55000")
}
