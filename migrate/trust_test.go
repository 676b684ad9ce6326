package migrate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// A role that may create schemas can't make the migrating administrator run its code.
func TestARecordThatAnotherRolePreparedIsNotUsed(t *testing.T) {
	t.Parallel()
	const traps = `CREATE SCHEMA fencegate; CREATE FUNCTION fencegate.trap() RETURNS text LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.ran VALUES (current_user); RETURN ''; END$$;
CREATE FUNCTION fencegate.trapped() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.ran VALUES (current_user); RETURN new; END$$;`
	const code = `CREATE TABLE fencegate.code (name text PRIMARY KEY, revision integer, hash text, min_program integer, applied_at timestamptz);`
	for what, c := range map[string]struct {
		sql      string
		readable bool
		object   string
	}{
		"a view":              {sql: `CREATE VIEW fencegate.code AS SELECT fencegate.trap() AS name, 1 AS revision, ''::text AS hash, 1 AS min_program`, object: "the schema fencegate"},
		"a view of the state": {sql: code + `CREATE VIEW fencegate.fence_state AS SELECT 1::bigint AS version, fencegate.trap() = '' AS dirty`, object: "the schema fencegate"},
		"a pre-release":       {sql: `CREATE VIEW fencegate.migrations AS SELECT length(fencegate.trap()) AS version`, readable: true, object: "the schema fencegate"},
		"a trigger":           {sql: code + `CREATE TRIGGER t BEFORE INSERT ON fencegate.code FOR EACH ROW EXECUTE FUNCTION fencegate.trapped()`, readable: true, object: "the schema fencegate"},
		"a policy": {sql: code + `ALTER TABLE fencegate.code ENABLE ROW LEVEL SECURITY; ALTER TABLE fencegate.code FORCE ROW LEVEL SECURITY;
CREATE POLICY p ON fencegate.code USING (fencegate.trap() = '')`, object: "the schema fencegate"},
		"an index": {sql: code + `CREATE FUNCTION fencegate.f(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1'; CREATE INDEX ON fencegate.code (fencegate.f('x'))`, object: "the schema fencegate"},
	} {
		pg := setup(t)
		exec1(t, pg, `CREATE TABLE public.ran (who text); GRANT INSERT ON public.ran TO PUBLIC`)
		other := pg.Database + "_other"
		exec1(t, pg, `CREATE ROLE "`+other+`"`)
		exec1(t, pg, `DO $$BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO "`+other+`"', current_database()); END$$`)
		exec1(t, pg, `SET ROLE "`+other+`"; `+traps+c.sql+`; RESET ROLE`)
		status, look := migrate.Look(t.Context(), pg.URL, migrate.All)
		for doing, err := range map[string]error{"status": look, "up": migrate.Up(t.Context(), pg.URL, migrate.All), "down": migrate.Down(t.Context(), pg.URL, migrate.All, true)} {
			var e *migrate.ForeignRecordError
			switch {
			case doing == "status" && c.readable:
				if err != nil || status.Installed() {
					t.Errorf("%s: status: %v, %v", what, status, err)
				}
			case !errors.As(err, &e) || e.Owner != other || doing != "status" && e.Object != c.object:
				t.Errorf("%s: %s: %v", what, doing, err)
			}
		}
		if err := plain(t, pg, migrate.All, 0); err == nil || !strings.Contains(err.Error(), other) {
			t.Errorf("%s: by psql: %v", what, err)
		}
		var ran int
		if err := pg.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM public.ran`).Scan(&ran); err != nil || ran > 0 {
			t.Errorf("%s: its code ran %d times, %v", what, ran, err)
		}
		exec1(t, pg, `DROP SCHEMA IF EXISTS fencegate CASCADE`)
		exec1(t, pg, `DROP OWNED BY "`+other+`"`)
		exec1(t, pg, `DROP ROLE "`+other+`"`)
	}
}

// The rights of others in the schema count as well as its owner.
func TestARecordThatOthersCanChangeIsNotWritten(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	for sql, undo := range map[string]string{
		`GRANT CREATE ON SCHEMA fencegate TO PUBLIC`:                       `REVOKE CREATE ON SCHEMA fencegate FROM PUBLIC`,
		`ALTER TABLE fencegate.code OWNER TO fence_writer`:                 `ALTER TABLE fencegate.code OWNER TO CURRENT_USER`,
		`CREATE RULE r AS ON INSERT TO fencegate.code DO ALSO SELECT 1`:    `DROP RULE r ON fencegate.code`,
		`ALTER TABLE fencegate.objects_state ENABLE ROW LEVEL SECURITY`:    `ALTER TABLE fencegate.objects_state DISABLE ROW LEVEL SECURITY`,
		`CREATE VIEW fencegate.more AS SELECT 1`:                           `DROP VIEW fencegate.more`,
		`CREATE TABLE fencegate.child () INHERITS (fencegate.fence_state)`: `DROP TABLE fencegate.child`,
	} {
		exec1(t, pg, sql)
		var e *migrate.ForeignRecordError
		if err := migrate.Up(t.Context(), pg.URL, migrate.All); !errors.As(err, &e) {
			t.Errorf("%s: %v", sql, err)
		}
		exec1(t, pg, undo)
		up(t, pg.URL)
	}
}

// A login's settings change neither how names are resolved, nor how they are compared.
func TestALoginsSettingsChangeNothing(t *testing.T) {
	t.Parallel()
	whole := catalogueOf(t, testenv.Postgres(t).URL)
	for what, set := range map[string]string{"path": `search_path = public, pg_catalog`, "quotes": `quote_all_identifiers = on`} {
		for how, migrated := range map[string]func(pg testenv.PG) error{
			"up":      func(pg testenv.PG) error { return migrate.Up(t.Context(), pg.URL, migrate.All) },
			"by psql": func(pg testenv.PG) error { return plain(t, pg, migrate.All, 0) },
		} {
			pg := setup(t)
			exec1(t, pg, `CREATE FUNCTION public.octet_length(bytea) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 32'`)
			exec1(t, pg, `DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET `+set+`', current_database()); END$$`)
			if err := migrated(pg); err != nil {
				t.Errorf("%s, %s: %v", what, how, err)
				continue
			}
			exec1(t, pg, `DROP FUNCTION public.octet_length(bytea)`) // nothing depends on it
			exec1(t, pg, `CREATE TABLE public.work (id bigint, token bigint)`)
			exec1(t, pg, `SELECT fence.protect('public.work', per_row => $$'work/' || id$$, stamp => 'token')`)
			wantStatus(t, pg.URL, true, false)
			exec1(t, pg, `SELECT fence.unprotect('public.work')`)
			exec1(t, pg, `DROP TABLE public.work; DO $$BEGIN EXECUTE format('ALTER DATABASE %I RESET ALL', current_database()); END$$`)
			if list := differences(whole, catalogueOf(t, pg.URL)); len(list) > 0 {
				t.Errorf("%s, %s:\n%s", what, how, strings.Join(list, "\n"))
			}
		}
	}
}

// A role that may create schemas can't make the migrating administrator run its code by a schema that has fencegate's
// name and note.
func TestASchemaThatAnotherRolePreparedIsNotMigrated(t *testing.T) {
	t.Parallel()
	const fenceTrap = `CREATE SCHEMA fence; GRANT ALL ON SCHEMA fence TO PUBLIC;
CREATE FUNCTION fence.trap() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RESET ROLE; INSERT INTO public.ran VALUES (current_user); RETURN new; END$$;
CREATE TABLE fence.registry (relid oid, number bigint, per_row text, stamp text);
INSERT INTO fence.registry VALUES (1, 1, 'x', 'x'); GRANT ALL ON ALL TABLES IN SCHEMA fence TO PUBLIC;
CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON fence.registry FOR EACH ROW EXECUTE FUNCTION fence.trap();`
	const objectsTrap = `CREATE SCHEMA objects; GRANT ALL ON SCHEMA objects TO PUBLIC; CREATE TABLE objects.buckets (name text);`
	for what, c := range map[string]struct {
		sql, schema string
		noted       bool // status believes a note, and so says whose it is
	}{
		"the fence":                {fenceTrap + noteSQL(t, "fence", stateOf(t, "fence")), "fence", true},
		"another baseline's fence": {fenceTrap + `COMMENT ON SCHEMA fence IS 'fencegate fence state 1'`, "fence", true},
		"the fence without note":   {fenceTrap, "fence", false},
		"the objects":              {objectsTrap + noteSQL(t, "objects", stateOf(t, "objects")), "objects", true},
		"the objects without note": {objectsTrap, "objects", false},
	} {
		pg := setup(t)
		exec1(t, pg, `CREATE TABLE public.ran (who text); GRANT INSERT ON public.ran TO PUBLIC`)
		other := as(t, pg, c.sql)
		_, look := migrate.Look(t.Context(), pg.URL, migrate.All)
		for doing, err := range map[string]error{"status": look, "up": migrate.Up(t.Context(), pg.URL, migrate.All)} {
			var e *migrate.ForeignSchemaError
			switch {
			case doing == "status" && !c.noted:
				if err != nil {
					t.Errorf("%s: status: %v", what, err)
				}
			case !errors.As(err, &e) || e.Owner != other || e.Schema != c.schema || !strings.Contains(err.Error(), "DROP SCHEMA "+c.schema):
				t.Errorf("%s: %s: %v", what, doing, err)
			}
		}
		is(t, pg, what+": nothing ran, nothing was made", `SELECT NOT EXISTS (SELECT FROM public.ran) AND to_regnamespace('fencegate') IS NULL`)
		exec1(t, pg, `DROP OWNED BY "`+other+`" CASCADE`)
		exec1(t, pg, `DROP ROLE "`+other+`"`)
		up(t, pg.URL)
	}
}

// as runs SQL as a new role that may create schemas, and returns the role.
func as(t *testing.T, pg testenv.PG, sql string) string {
	t.Helper()
	other := pg.Database + "_other"
	exec1(t, pg, `CREATE ROLE "`+other+`"; GRANT CREATE ON DATABASE "`+pg.Database+`" TO "`+other+`"`)
	exec1(t, pg, `SET ROLE "`+other+`"; `+sql+`; RESET ROLE`)
	return other
}

// The SQL for a database that programs may not change believes the note of fence_owner's schema alone.
func TestTheSQLByHandIsNotAppliedToASchemaOfAnotherRole(t *testing.T) {
	t.Parallel()
	state := stateOf(t, "fence")
	for what, c := range map[string]struct {
		which migrate.Set
		from  int
	}{"from a state": {migrate.Fence, state}, "what it needs": {migrate.Objects, 0}} {
		pg := setup(t)
		other := as(t, pg, fmt.Sprintf(`CREATE SCHEMA fence; COMMENT ON SCHEMA fence IS 'fencegate fence state %d %s, code 1000 0123456789ab'`, state, ours(t, "fence").Baseline))
		if c.from > 0 {
			exec1(t, pg, noteSQL(t, "fence", state))
		}
		if err := plain(t, pg, c.which, c.from); err == nil || !strings.Contains(err.Error(), "the schema fence is not of fence_owner (its owner is "+other) {
			t.Errorf("%s: %v", what, err)
		}
		exec1(t, pg, `DROP OWNED BY "`+other+`" CASCADE; DROP ROLE "`+other+`"`)
	}
}

// What others own or may create in fencegate's own schemas counts as well as the schema's owner.
func TestASchemaThatOthersCanChangeIsNotMigrated(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	for sql, undo := range map[string]string{
		`GRANT CREATE ON SCHEMA fence TO PUBLIC`:                                          `REVOKE CREATE ON SCHEMA fence FROM PUBLIC`,
		`GRANT CREATE ON SCHEMA objects TO fence_writer`:                                  `REVOKE CREATE ON SCHEMA objects FROM fence_writer`,
		`ALTER SCHEMA objects OWNER TO fence_writer`:                                      `ALTER SCHEMA objects OWNER TO fence_owner`,
		`ALTER TABLE objects.blobs OWNER TO fence_writer`:                                 `ALTER TABLE objects.blobs OWNER TO fence_owner`,
		`ALTER FUNCTION fence.shown(text) OWNER TO fence_writer`:                          `ALTER FUNCTION fence.shown(text) OWNER TO fence_owner`,
		`CREATE DOMAIN fence.more AS text; ALTER DOMAIN fence.more OWNER TO fence_writer`: `DROP DOMAIN fence.more`,
	} {
		exec1(t, pg, sql)
		_, look := migrate.Look(t.Context(), pg.URL, migrate.All)
		for doing, err := range map[string]error{
			"status": look, "up": migrate.Up(t.Context(), pg.URL, migrate.All), "down": migrate.Down(t.Context(), pg.URL, migrate.All, true),
		} {
			if e, ok := errors.AsType[*migrate.ForeignSchemaError](err); !ok {
				t.Errorf("%s: %s: %v", sql, doing, err)
			} else if e.Owner == "" || e.Object == "" {
				t.Errorf("%s: %s: %+v", sql, doing, e)
			}
		}
		exec1(t, pg, undo)
		up(t, pg.URL)
	}
}
