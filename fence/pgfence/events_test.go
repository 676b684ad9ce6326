package pgfence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// events is a world with event triggers and an owner of tables that is not a superuser.
func events(t *testing.T) (w world, owner *pgx.Conn) {
	t.Helper()
	w = setup(t)
	w.exec(t, `SELECT fence.install_event_triggers(), fence.install_event_triggers()`) // a repetition succeeds
	owner = connect(t, w.pg.As(t, "fence_protector"))
	w.exec(t, `CREATE SCHEMA own AUTHORIZATION `+pgx.Identifier{owner.Config().User}.Sanitize())
	for _, sql := range []string{
		`SET search_path = own`,
		`CREATE TABLE plain (id int, stamp bigint); CREATE TABLE parted (id int, stamp bigint) PARTITION BY RANGE (id)`,
		`SELECT fence.protect('plain', under => 'docs/', stamp => 'stamp'), fence.protect('parted', per_row => $$'docs/' || id$$, stamp => 'stamp')`,
	} {
		if err := statement(sql)(t.Context(), owner); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return w, owner
}

func TestEventTriggersCoverWhatJoins(t *testing.T) {
	t.Parallel()
	w, owner := events(t)
	for _, sql := range []string{
		`CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM (0) TO (10)`,
		`CREATE TABLE p2 (stamp bigint, id int); ALTER TABLE parted ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)`,
		`CREATE TABLE p3 PARTITION OF parted FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id)`,
		`CREATE TABLE p31 PARTITION OF p3 FOR VALUES FROM (20) TO (30)`,
		`CREATE TABLE sub (id int, stamp bigint) PARTITION BY RANGE (id); CREATE TABLE sub1 PARTITION OF sub FOR VALUES FROM (30) TO (40)`,
		`ALTER TABLE parted ATTACH PARTITION sub FOR VALUES FROM (30) TO (40)`,
		`CREATE TABLE kid (more int) INHERITS (plain)`,
		`CREATE TABLE late (id int, stamp bigint); ALTER TABLE late INHERIT plain`,
		`SELECT fence.protect_schema('own', under => 'own/')`,
		`CREATE TABLE new (id int); CREATE TABLE made AS SELECT 1 AS id; SELECT 1 AS id INTO into_`,
		`CREATE SCHEMA other; CREATE TABLE other.moved (id int); ALTER TABLE other.moved SET SCHEMA own`,
	} {
		if strings.Contains(sql, "CREATE SCHEMA") {
			w.exec(t, `GRANT CREATE ON DATABASE `+w.pg.Database+` TO PUBLIC`)
		}
		if err := statement(sql)(t.Context(), owner); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	want := "own.into_ own/, own.kid docs/ stamp, own.late docs/ stamp, own.made own/, own.moved own/, own.new own/, own.p1 'docs/' || id stamp, " +
		"own.p2 'docs/' || id stamp, own.p3 'docs/' || id stamp, own.p31 'docs/' || id stamp, own.parted 'docs/' || id stamp, own.plain docs/ stamp, " +
		"own.sub 'docs/' || id stamp, own.sub1 'docs/' || id stamp"
	if got := guards(t, w, "own."); got != want {
		t.Errorf("guards: %s", got)
	}
	if got := uncovered(t, w); got != "" {
		t.Errorf("uncovered: %s", got)
	}
	g := w.acquire(t, "docs/5", 1)
	wantUnder(t, owner, g, `INSERT INTO p1 VALUES (5)`, "")
	wantUnder(t, owner, g, `INSERT INTO p2 (id) VALUES (15)`, "ZF004")
	for _, sql := range []string{`ALTER TABLE parted DETACH PARTITION p1; INSERT INTO p1 VALUES (6)`, `INSERT INTO new VALUES (1)`} {
		wantUnder(t, owner, g, sql, "ZF004")
	}
	for _, sql := range []string{`DROP TABLE p31`, `DROP TABLE parted CASCADE`, `SELECT fence.unprotect_schema('own')`, `SELECT fence.unprotect('plain')`, `DROP TABLE plain CASCADE`} {
		if err := statement(sql)(t.Context(), owner); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestEventTriggersRefuseWhatWeakens(t *testing.T) {
	t.Parallel()
	w, owner := events(t)
	if err := statement(`CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM (0) TO (10)`)(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; GRANT ALL ON FOREIGN SERVER files TO PUBLIC`)
	for _, sql := range []string{
		`ALTER TABLE plain DISABLE TRIGGER fence_guard`, `ALTER TABLE plain DISABLE TRIGGER USER`, `ALTER TABLE p1 DISABLE TRIGGER ALL`,
		`ALTER TABLE parted ENABLE REPLICA TRIGGER fence_insert`, `ALTER TABLE p1 ENABLE TRIGGER fence_stamp`, `ALTER TABLE parted ENABLE TRIGGER ALL`,
		`DROP TRIGGER fence_guard ON plain`, `DROP TRIGGER fence_delete ON p1`, `DROP TRIGGER fence_stamp ON p1`, `DROP TRIGGER fence_update ON parted`,
		`ALTER TRIGGER fence_guard ON plain RENAME TO x`,
		`CREATE OR REPLACE TRIGGER fence_guard BEFORE INSERT ON plain EXECUTE FUNCTION fence.guard('docs')`,
		`CREATE TABLE free (id int, stamp bigint) PARTITION BY RANGE (id); ALTER TABLE parted DETACH PARTITION p1; ALTER TABLE free ATTACH PARTITION p1 FOR VALUES FROM (0) TO (9)`,
		`CREATE TABLE o (id int, stamp bigint); SELECT fence.protect('o', resource => 'o'); ALTER TABLE o INHERIT plain`,
		`CREATE FOREIGN TABLE far PARTITION OF parted FOR VALUES FROM (90) TO (99) SERVER files OPTIONS (filename '/dev/null')`,
		`SET session_replication_role = replica; ALTER TABLE plain DISABLE TRIGGER fence_guard`,
	} {
		conn := owner
		if strings.HasPrefix(sql, "SET") || strings.HasPrefix(sql, "CREATE FOREIGN") { // a superuser may do more, but not this
			conn = connect(t, w.pg.URL, "-c search_path=own")
		}
		err := statement(sql)(t.Context(), conn)
		if err == nil {
			t.Errorf("done: %s", sql)
			continue
		}
		if code := refusalOf(t, err).Code; code != "55000" && code != "42809" {
			t.Errorf("%s: %v", sql, err)
		}
		if got := uncovered(t, w); got != "" {
			t.Fatalf("%s: uncovered: %s", sql, got)
		}
	}
	// A login without fence_protector gets an error that names the missing role.
	w.exec(t, `CREATE SCHEMA s; SELECT fence.protect_schema('s', under => 's/'); GRANT ALL ON SCHEMA s TO PUBLIC`)
	_, err := connect(t, w.pg.OtherURL).Exec(t.Context(), `CREATE TABLE s.t (id int)`)
	if wantCode(t, err, "42501"); !strings.Contains(refusalOf(t, err).Hint, "GRANT fence_protector") {
		t.Error(err)
	}
	_, err = owner.Exec(t.Context(), `SELECT fence.install_event_triggers()`)
	wantCode(t, err, "42501")

	w.exec(t, `SELECT fence.uninstall_event_triggers()`)
	if err := statement(`ALTER TABLE plain DISABLE TRIGGER fence_guard`)(t.Context(), owner); err != nil {
		t.Error(err)
	}
}

// A guard reads columns by their names, so a column with such a name can't be replaced or removed.
func TestEventTriggersRefuseAnotherColumnUnderAGuardsName(t *testing.T) {
	t.Parallel()
	w, owner := events(t)
	run(t, owner, `CREATE TABLE swapped (id int, other int, stamp bigint, stamped bigint); CREATE TABLE part (LIKE swapped) PARTITION BY RANGE (other)`,
		`CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (9)`, `CREATE TYPE typed AS (id int, other int); CREATE TABLE of_type OF typed`,
		`SELECT fence.protect('swapped', per_row => $$'docs/' || id$$, stamp => 'stamp'), fence.protect('part', per_row => $$'docs/' || id$$)`,
		`SELECT fence.protect('of_type', per_row => $$'docs/' || id$$)`)
	for _, sql := range []string{
		`ALTER TABLE swapped RENAME id TO old`, `ALTER TABLE part RENAME COLUMN id TO old`, `ALTER TABLE swapped DROP COLUMN id`,
		`ALTER TABLE swapped RENAME stamp TO old`, `ALTER TABLE swapped DROP COLUMN stamp`,
		`DO $$ BEGIN ALTER TABLE swapped RENAME id TO old; ALTER TABLE swapped RENAME other TO id; END $$`,
		`ALTER TYPE typed RENAME ATTRIBUTE id TO old CASCADE`,
	} {
		if err := statement(sql)(t.Context(), owner); err == nil {
			t.Errorf("done: %s", sql)
		} else {
			wantCode(t, err, "55000")
		}
	}
	run(t, owner, `ALTER TABLE swapped RENAME other TO another`, `ALTER TABLE swapped ADD COLUMN more int`, `COMMENT ON COLUMN swapped.id IS 'of the document'`,
		`ALTER TABLE swapped ALTER COLUMN id SET NOT NULL`)
	if got := uncovered(t, w); got != "" {
		t.Errorf("uncovered: %s", got)
	}
	// Without event triggers, fence.uncovered lists a missing column.
	w.exec(t, `SELECT fence.uninstall_event_triggers(); ALTER TABLE own.swapped RENAME id TO old`)
	if got := uncovered(t, w); !strings.Contains(got, "own.swapped: its guard reads the column id, which is not there") {
		t.Errorf("uncovered: %s", got)
	}
}

// A child is written through each of its parents, whatever their order.
func TestEventTriggersRefuseAChildOfAnUnprotectedParentToo(t *testing.T) {
	t.Parallel()
	_, owner := events(t)
	run(t, owner, `CREATE TABLE free (id int, stamp bigint); CREATE TABLE late () INHERITS (free); SELECT fence.protect_schema('own', under => 'own/')`,
		`SELECT fence.unprotect('free')`)
	for _, sql := range []string{
		`CREATE TABLE c () INHERITS (free, plain)`, `CREATE TABLE c () INHERITS (plain, free)`, `ALTER TABLE late INHERIT plain`,
		`CREATE TABLE c () INHERITS (plain); ALTER TABLE c INHERIT free`, `ALTER TABLE plain INHERIT free`,
	} {
		if err := statement(sql)(t.Context(), owner); err == nil {
			t.Errorf("done: %s", sql)
		} else {
			wantCode(t, err, "55000")
		}
	}
	run(t, owner, `CREATE TABLE c () INHERITS (plain)`)
}
