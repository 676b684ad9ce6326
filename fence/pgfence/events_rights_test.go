package pgfence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// spying is code of fence_owner that tries to run with another login's rights. It counts the role that it runs as,
// tries to gain more rights, and counts again. The counters are sequences, which a failed command does not reset.
const spying = `CREATE SCHEMA spy;
CREATE SEQUENCE spy.super; CREATE SEQUENCE spy.other;
CREATE FUNCTION spy.note() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  attempt text;
BEGIN
  FOREACH attempt IN ARRAY ARRAY['SELECT 1', 'RESET ROLE', 'SET ROLE NONE', 'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION DEFAULT',
      format('SET ROLE %I', session_user), format('SET LOCAL ROLE %I', session_user)] LOOP
    BEGIN
      EXECUTE attempt;
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
    PERFORM nextval(CASE WHEN (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN 'spy.super'::regclass ELSE 'spy.other' END);
  END LOOP;
  RETURN true;
END $$;
GRANT USAGE ON SCHEMA spy TO PUBLIC; GRANT USAGE ON ALL SEQUENCES IN SCHEMA spy TO PUBLIC; GRANT CREATE ON SCHEMA spy TO fence_owner`

// replacing makes every function and view that fence_owner can change call spy.note with its caller's rights, and a
// view of a table. Objects that can't be replaced stay as they are.
const replacing = `SET ROLE fence_owner;
DO $$
DECLARE
  f record;
  done int := 0;
BEGIN
  FOR f IN SELECT c.oid::regclass AS name, pg_get_viewdef(c.oid) AS text FROM pg_class c WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind = 'v' LOOP
    EXECUTE format('CREATE OR REPLACE VIEW %s AS SELECT x.* FROM (%s) x WHERE spy.note()', f.name, rtrim(f.text, ';'));
  END LOOP;
  FOR f IN SELECT p.oid, p.proname, p.prorettype, p.prokind, p.proretset FROM pg_proc p
            WHERE p.pronamespace = 'fence'::regnamespace AND p.prokind = 'f'
              AND p.proname !~ '^(rows|stamp|resource_of)_[0-9]+$' LOOP
    BEGIN
      EXECUTE format('CREATE OR REPLACE FUNCTION fence.%I(%s) RETURNS %s LANGUAGE plpgsql SECURITY INVOKER AS %L', f.proname,
        pg_get_function_arguments(f.oid), pg_get_function_result(f.oid),
        CASE WHEN f.prorettype IN ('event_trigger'::regtype, 'void'::regtype) OR f.proretset THEN 'BEGIN PERFORM spy.note(); END'
             WHEN f.prorettype = 'boolean'::regtype THEN format('BEGIN RETURN spy.note() AND %L; END', f.proname NOT LIKE '%fault')
             WHEN f.proname = 'make_guards' THEN 'BEGIN PERFORM spy.note(); RETURN ARRAY[NULL, ''x/'', NULL, ''enforce'', NULL, NULL]; END'
             ELSE 'BEGIN PERFORM spy.note(); RETURN NULL; END' END);
      done := done + 1;
    EXCEPTION WHEN OTHERS THEN
      RAISE NOTICE '%: %', f.oid::regprocedure, sqlerrm;
    END;
  END LOOP;
  IF done < 40 THEN
    RAISE EXCEPTION 'only % functions were replaced', done;
  END IF;
END $$;
RESET ROLE`

// The event triggers run in every login's commands, including a superuser's. A login that is fence_owner can replace
// the objects in the schema fence, but gains no other login's rights by that.
func TestEventTriggersRunNothingOfTheOwnersWithASuperusersRights(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string][]string{
		"functions and views": {replacing},
		"the registry, too": {`SET ROLE fence_owner; ALTER TABLE fence.registry RENAME TO was;
			CREATE VIEW fence.registry AS SELECT * FROM fence.was WHERE spy.note(); GRANT SELECT ON fence.registry TO PUBLIC; RESET ROLE`, replacing},
		"its own types": {replacing, `SET ROLE fence_owner; DROP FUNCTION IF EXISTS fence.kept(regclass, integer);
			CREATE TYPE spy.answer AS ENUM ('t'); CREATE FUNCTION spy.cast(spy.answer) RETURNS boolean LANGUAGE sql AS 'SELECT spy.note()';
			CREATE CAST (spy.answer AS boolean) WITH FUNCTION spy.cast(spy.answer) AS IMPLICIT;
			CREATE FUNCTION fence.kept(regclass, integer) RETURNS spy.answer LANGUAGE plpgsql AS $$ BEGIN RETURN 't'; END $$; RESET ROLE`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := events(t)
			w.exec(t, `SELECT fence.protect_schema('own', under => 'own/')`)
			w.exec(t, `ALTER SCHEMA own OWNER TO CURRENT_USER`)
			// The attack may come at a moment without fence_keep. The other triggers, which would run the functions replaced so
			// far, are disabled until the attack is complete.
			triggers := value[[]string](t, w, `SELECT array_agg(evtname::text) FROM pg_event_trigger WHERE evtname LIKE 'fence%'`)
			for _, trigger := range triggers {
				w.exec(t, `ALTER EVENT TRIGGER `+trigger+` DISABLE`)
			}
			for _, sql := range append([]string{spying}, attack...) {
				w.exec(t, sql)
			}
			for _, trigger := range triggers {
				w.exec(t, `ALTER EVENT TRIGGER `+trigger+` ENABLE ALWAYS`)
			}
			// What was replaced may call itself for ever: the stack's end comes sooner so.
			super := connect(t, w.pg.URL, "-c search_path=own", "-c max_stack_depth=300kB")
			for _, sql := range []string{
				`CREATE TABLE p9 PARTITION OF parted FOR VALUES FROM (90) TO (99)`, `ALTER TABLE plain ADD COLUMN more int`,
				`ALTER TABLE plain RENAME COLUMN more TO most`, `CREATE TABLE fresh (id int)`, `ALTER TABLE plain DISABLE TRIGGER fence_guard`,
				`DROP TRIGGER fence_guard ON plain`, `DROP TABLE parted`, `CREATE VIEW v AS SELECT 1 AS a`,
			} {
				_ = statement(sql)(t.Context(), super) // success or failure: fence_owner may have replaced the functions
			}
			if n := value[int](t, w, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM spy.super`); n > 0 {
				t.Errorf("fence_owner's code ran %d times with a superuser's rights", n)
			}
			if n := value[int](t, w, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM spy.other`); n == 0 {
				t.Error("nothing that was replaced ran: the test tests nothing")
			}
		})
	}
}

// The functions of the event triggers belong to the role that installed them. The function that calls the fence
// belongs to a role without members.
func TestEventTriggersBelongToTheirInstaller(t *testing.T) {
	t.Parallel()
	w, owner := events(t)
	got := value[string](t, w, `SELECT string_agg(p.proname || CASE WHEN p.prosecdef THEN ' asks' ELSE '' END, ', ' ORDER BY p.proname)
		FROM pg_proc p WHERE p.pronamespace = 'fence_events'::regnamespace
		 AND p.proowner = (SELECT oid FROM pg_roles WHERE rolname = CASE WHEN p.prosecdef THEN 'fence_events' ELSE current_user END)`)
	if want := "cover, is_kept asks, keep, keep_dropped, make_guards asks, need_kept, needs_guards asks, put_guards, remember asks"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, sql := range []string{
		`SELECT fence_events.make_guards('own.plain'::regclass)`, `SELECT fence_events.remember('own.plain'::regclass)`,
	} {
		_, err := connect(t, w.pg.WriterURL).Exec(t.Context(), sql)
		wantCode(t, err, "42501")
	}
	for _, sql := range []string{
		`CREATE OR REPLACE FUNCTION fence_events.need_kept(p_relation regclass, p_column integer) RETURNS void LANGUAGE sql AS ''`,
		`ALTER FUNCTION fence_events.is_kept(oid, integer) SECURITY INVOKER`, `DROP SCHEMA fence_events CASCADE`, `SET ROLE fence_events`,
		`CREATE FUNCTION fence_events.is_kept(oid, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'`,
	} {
		conn := connect(t, w.pg.As(t, "fence_owner", "fence_protector"))
		if _, err := conn.Exec(t.Context(), `SET ROLE fence_owner; `+sql); err == nil {
			t.Errorf("done: %s", sql)
		} else {
			wantCode(t, err, "42501")
		}
	}
	// A role with more rights than expected is refused.
	w.exec(t, `SELECT fence.uninstall_event_triggers()`)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), `GRANT fence_events TO `+pgx.Identifier{owner.Config().User}.Sanitize()+`; SELECT fence.install_event_triggers()`)
	wantCode(t, err, "55000")
	_ = tx.Rollback(t.Context())
}

// Event triggers that remain after their schema was dropped block no command.
func TestEventTriggersOutliveTheSchema(t *testing.T) {
	t.Parallel()
	w, _ := events(t)
	w.exec(t, `DROP SCHEMA objects, fence CASCADE`)
	w.exec(t, `CREATE TABLE after (id int); ALTER TABLE after ADD COLUMN x int; DROP TABLE after`)
}
