package pgfence_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// inventory lists, as text, every object in the database that PostgreSQL itself did not create, and every trigger.
func inventory(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `
		SELECT pg_describe_object(x.classid, x.oid, 0) FROM (
		  SELECT 'pg_namespace'::regclass, oid FROM pg_namespace UNION ALL SELECT 'pg_class', oid FROM pg_class UNION ALL SELECT 'pg_proc', oid FROM pg_proc
		  UNION ALL SELECT 'pg_type', oid FROM pg_type UNION ALL SELECT 'pg_trigger', oid FROM pg_trigger UNION ALL SELECT 'pg_event_trigger', oid FROM pg_event_trigger
		  UNION ALL SELECT 'pg_constraint', oid FROM pg_constraint UNION ALL SELECT 'pg_rewrite', oid FROM pg_rewrite UNION ALL SELECT 'pg_operator', oid FROM pg_operator
		  UNION ALL SELECT 'pg_default_acl', oid FROM pg_default_acl UNION ALL SELECT 'pg_policy', oid FROM pg_policy UNION ALL SELECT 'pg_attrdef', oid FROM pg_attrdef
		) x(classid, oid) WHERE oid >= 16384 AND pg_describe_object(x.classid, x.oid, 0) !~ 'pg_(toast|temp)' ORDER BY 1`)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Uninstalling leaves the user's objects as they were, in every mode of protection.
func TestUninstallingLeavesNothing(t *testing.T) {
	t.Parallel()
	_ = testenv.Postgres(t) // the roles stay in use, so no other test loses them
	pg := testenv.PostgresEmpty(t)
	conn := connect(t, pg.URL)
	do := func(sql string) {
		t.Helper()
		if err := statement(sql)(t.Context(), conn); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	do(`CREATE TABLE a (id bigint, stamp bigint); CREATE TABLE p (id bigint, stamp bigint) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)`)
	do(`CREATE TABLE r (id bigint); CREATE SCHEMA shop; CREATE TABLE shop.t (id int); CREATE VIEW v AS SELECT 1 AS id`)
	do(`CREATE FUNCTION vf() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER vt INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION vf()`)
	before := inventory(t, conn)
	for _, events := range []string{`SELECT 1`, `SELECT fence.install_event_triggers()`} {
		if err := migrate.Up(t.Context(), pg.URL, migrate.All); err != nil {
			t.Fatal(err)
		}
		do(events)
		do(`SELECT fence.protect('a', under => 'x/', stamp => 'stamp'), fence.protect('p', per_row => $$'x/' || id$$, stamp => 'stamp'), fence.protect('v', resource => 'x'),
			fence.protect('r', per_row => 'id', mode => 'report'), fence.protect_schema('shop', resource => 'x')`)
		if err := migrate.Down(t.Context(), pg.URL, migrate.All, true); err != nil {
			t.Fatal(err)
		}
		after := inventory(t, conn)
		for _, x := range after {
			if !slices.Contains(before, x) {
				t.Errorf("left behind: %s", x)
			}
		}
		for _, x := range before {
			if !slices.Contains(after, x) {
				t.Errorf("gone: %s", x)
			}
		}
		do(`INSERT INTO a VALUES (1); INSERT INTO p VALUES (1); UPDATE p SET id = 2; TRUNCATE p; INSERT INTO v VALUES (1); INSERT INTO shop.t VALUES (1); CREATE TABLE late (); DROP TABLE late`)
	}
}
