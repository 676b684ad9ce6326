package pgfence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// own creates a schema for a login, with a table t in it, and puts it into the login's search_path.
func own(t *testing.T, w world, login *pgx.Conn) {
	t.Helper()
	name := pgx.Identifier{login.Config().User}.Sanitize()
	w.exec(t, `CREATE SCHEMA `+name+` AUTHORIZATION `+name)
	if err := statement(`SET search_path = `+name+`; CREATE TABLE t (id int, stamp bigint)`)(t.Context(), login); err != nil {
		t.Fatal(err)
	}
}

// Writing and protecting are separate roles.
func TestAWriterDoesNotProtectAndAProtectorDoesNotWrite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	writer, protector := connect(t, w.pg.As(t, "fence_writer")), connect(t, w.pg.As(t, "fence_protector"))
	own(t, w, writer)
	own(t, w, protector)
	_, err := writer.Exec(t.Context(), `SELECT fence.protect('t', resource => 'mine')`)
	if wantCode(t, err, "42501"); !strings.Contains(refusalOf(t, err).Hint, "GRANT fence_protector TO ") {
		t.Errorf("it does not say what to grant: %v", err)
	}
	for _, sql := range []string{
		`CREATE TRIGGER x BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION fence.guard('mine')`,
		`CREATE TRIGGER x BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION fence.guard_rows('id', '1')`,
		`CREATE TRIGGER x BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION fence.report('mine', '', '', '1', '')`,
		`SELECT fence.protect_schema(current_schema()::regnamespace, resource => 'mine')`, `SELECT fence.unprotect_schema(current_schema()::regnamespace)`,
		`SELECT fence.unprotect('t')`, `SELECT fence.make_rows(NULL, 'stamp')`, `SELECT fence.make_counter(NULL)`, `SELECT fence.tidy()`,
		`SELECT fence.leave('t')`, `SELECT fence.remember('t')`, `SELECT fence.make_guards('t')`, `SELECT fence.probe('t', 'id')`,
	} {
		_, err := writer.Exec(t.Context(), sql)
		if err == nil {
			t.Errorf("done by a writer: %s", sql)
			continue
		}
		wantCode(t, err, "42501")
	}
	for _, sql := range []string{
		`SELECT fence.protect('t', per_row => 'id', stamp => 'stamp')`, `SELECT fence.protect('t', resource => 'mine', mode => 'report'), fence.enforce('t')`,
		`SELECT fence.refresh('t'), fence.unprotect('t')`, `SELECT fence.protect_schema(current_schema()::regnamespace, resource => 'mine')`,
		`SELECT fence.unprotect_schema(current_schema()::regnamespace)`,
	} {
		if _, err := protector.Exec(t.Context(), sql); err != nil {
			t.Errorf("a protector: %s: %v", sql, err)
		}
	}
	for _, sql := range []string{
		`SELECT fence.use('x', '1')`, `SELECT fence.use(ARRAY['x'], ARRAY['1'])`, `SELECT fence.check()`, `SELECT fence.raise('x', 1, NULL, '')`,
		`SELECT fence.drain('x', 1, NULL)`, `SELECT fence.revoke('x')`, `SELECT fence.next_epoch(1)`, `SELECT fence.check_issued('x', 1)`,
		`SELECT fence.invalidate_all()`, `SELECT FROM fence.fences`, `SELECT FROM fence.resources`, `SELECT FROM fence.leaving`,
		`DELETE FROM fence.registry`, `INSERT INTO fence.unsealed VALUES ('*')`, `INSERT INTO fence.leaving VALUES (1)`,
		`SELECT fence.verify_settings(NULL)`, `SELECT fence.has_left()`, `CREATE TABLE fence.mine ()`, `SELECT nextval('fence.protections')`,
		`SELECT fence.protect('public.work', resource => 'x')`, `SELECT fence.unprotect('public.work')`,
		`SELECT fence.protect_schema('public', resource => 'x')`, `CREATE OR REPLACE FUNCTION fence.guard() RETURNS trigger LANGUAGE sql AS ''`,
	} {
		_, err := protector.Exec(t.Context(), sql)
		if err == nil {
			t.Errorf("done by a protector: %s", sql)
		} else if code := refusalOf(t, err).Code; code != "42501" && !(strings.Contains(sql, "has_left") && code == "0A000") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM pg_auth_members WHERE roleid = 'fence_protector'::regrole AND member IN ('fence_writer'::regrole, 'fence_gateway'::regrole)`); n != 0 {
		t.Errorf("%d other roles are in fence_protector", n)
	}
}

// Objects that are created for a protection and not used do not accumulate.
func TestAProtectorMakesNothingWithoutBound(t *testing.T) {
	t.Parallel()
	w := setup(t)
	protector := connect(t, w.pg.As(t, "fence_protector"))
	own(t, w, protector)
	if err := statement(`SELECT fence.protect('t', per_row => 'id', mode => 'report', stamp => 'stamp')`)(t.Context(), protector); err != nil {
		t.Fatal(err)
	}
	const made = `SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'fence'::regnamespace AND proname ~ '_[0-9]+$')
		+ (SELECT count(*) FROM pg_class WHERE relnamespace = 'fence'::regnamespace AND relkind = 'S' AND relname ~ '_[0-9]+$')`
	before := value[int](t, w, made)
	for range 5 {
		for _, sql := range []string{
			`SELECT fence.make_counter(NULL) FROM generate_series(1, 10)`, `SELECT fence.make_counter(i) FROM generate_series(100, 110) i`,
			`SELECT fence.make_rows(NULL, 'stamp') FROM generate_series(1, 10)`, `SELECT fence.protect('t', per_row => 'id', mode => 'report', stamp => 'stamp')`,
			`SELECT fence.make_counter(fence.make_rows(NULL, 'stamp')) FROM generate_series(1, 10)`,
		} {
			if err := statement(sql)(t.Context(), protector); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	if after := value[int](t, w, made); after > before+4 { // created by the last call
		t.Errorf("%d functions and sequences, where there were %d", after, before)
	}
	if got := value[string](t, w, `SELECT coalesce(string_agg(reason, '; '), '') FROM fence.uncovered WHERE reason NOT LIKE 'is in report mode%'`); got != "" {
		t.Errorf("uncovered: %s", got)
	}
}

// Guards are removed together, by fence.unprotect. A login can't remove a table from the registry, or one of the
// guards.
func TestGuardsGoAsAWhole(t *testing.T) {
	t.Parallel()
	w, owner := events(t)
	for _, sql := range []string{
		`SELECT fence.leave('plain')`,
		`SELECT fence.leave('plain'); DROP TRIGGER fence_guard ON plain`,
		`SELECT fence.leave('plain'); ALTER TABLE plain DISABLE TRIGGER ALL`,
		`SELECT fence.leave('plain'); DROP TRIGGER fence_stamp ON plain; DROP TRIGGER fence_insert ON plain`,
		`SELECT fence.leave('plain'); SET CONSTRAINTS ALL IMMEDIATE; DROP TRIGGER fence_guard ON plain`,
		`BEGIN; SELECT fence.leave('plain'); DROP TRIGGER fence_guard ON plain; SET CONSTRAINTS ALL IMMEDIATE; COMMIT`,
		`DO $$ BEGIN PERFORM fence.leave('plain'); DROP TRIGGER fence_guard ON plain; COMMIT; END $$`,
	} {
		if err := statement(sql)(t.Context(), owner); err == nil {
			t.Errorf("done: %s", sql)
		} else {
			wantCode(t, err, "55000")
		}
		_ = statement(`ROLLBACK`)(t.Context(), owner)
		if got := uncovered(t, w); got != "" {
			t.Fatalf("%s: uncovered: %s", sql, got)
		}
	}
	for _, sql := range []string{
		`BEGIN; SET CONSTRAINTS ALL IMMEDIATE; SELECT fence.unprotect('plain'); COMMIT`, // whatever the session's setting
		`SELECT fence.protect('plain', resource => 'again'), fence.unprotect('plain'), fence.protect('plain', resource => 'again')`,
		`BEGIN; SELECT fence.unprotect('plain'); DROP TABLE plain; COMMIT`,
		`SELECT fence.unprotect('parted')`,
	} {
		if err := statement(sql)(t.Context(), owner); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.leaving`); n != 0 {
		t.Errorf("%d tables are still leaving", n)
	}
}
