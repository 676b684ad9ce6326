package pgfence_test

import (
	"strings"
	"testing"
)

// guards is the output of fence.protected for the relations whose name contains part.
func guards(t *testing.T, w world, part string) string {
	t.Helper()
	return value[string](t, w, `SELECT coalesce(string_agg(concat_ws(' ', relation, resource, under, per_row, stamp, CASE WHEN NOT complete THEN 'incomplete' END), ', ' ORDER BY relation::text), '')
		FROM fence.protected WHERE relation::text LIKE '%' || $1 || '%'`, part)
}

func TestASchemaIsProtectedAsAWhole(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE SCHEMA shop; CREATE TABLE shop.a (id int); CREATE TABLE shop.own (id int); CREATE VIEW shop.v AS SELECT 1`)
	w.exec(t, `CREATE TABLE shop.p (id int) PARTITION BY RANGE (id); CREATE TABLE shop.p1 PARTITION OF shop.p FOR VALUES FROM (0) TO (9)`)
	w.exec(t, `SELECT fence.protect('shop.own', resource => 'mine'), fence.protect_schema('shop', under => 'shop/')`)
	if got := guards(t, w, "shop."); got != "shop.a shop/, shop.own mine, shop.p shop/, shop.p1 shop/" {
		t.Errorf("guards: %s", got)
	}
	w.exec(t, `CREATE TABLE shop.late (id int)`)
	w.exec(t, `CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE shop.f (id int) SERVER files OPTIONS (filename '/dev/null')`)
	want := "shop.f: is a foreign table in the protected schema shop, and can't be guarded here; shop.late: is in the protected schema shop and has no guard"
	if got := uncovered(t, w); got != want {
		t.Errorf("uncovered: %s", got)
	}
	w.exec(t, `DROP FOREIGN TABLE shop.f; SELECT fence.protect_schema('shop', per_row => $$'shop/' || id$$)`) // a new rule for all tables that follow the schema's
	if got := guards(t, w, "shop."); got != "shop.a 'shop/' || id, shop.late 'shop/' || id, shop.own mine, shop.p 'shop/' || id, shop.p1 'shop/' || id" {
		t.Errorf("guards: %s", got)
	}
	if got := uncovered(t, w); got != "" {
		t.Errorf("uncovered: %s", got)
	}
	w.exec(t, `SELECT fence.unprotect_schema('shop')`)
	if got := guards(t, w, "shop."); got != "shop.own mine" {
		t.Errorf("guards: %s", got)
	}
	for args, code := range map[string]string{
		`'pg_catalog', under => 'x/'`: "22023", `'fence', under => 'x/'`: "22023", `'shop'`: "22023", `'nowhere', under => 'x/'`: "3F000",
		`'shop', under => 'x'`: "22023", `'shop', under => 'x/', mode => 'y'`: "22023", `'shop', per_row => 'nothing'`: "22023",
	} {
		_, err := w.admin.Exec(t.Context(), `SELECT fence.protect_schema(`+args+`)`)
		wantCode(t, err, code)
	}
	_, err := w.session(t).Exec(t.Context(), `SELECT fence.protect_schema('shop', under => 'x/')`)
	wantCode(t, err, "42501")
}

func TestAViewWithTriggersOfItsOwnCanBeProtected(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE written (what text); CREATE VIEW v AS SELECT 1 AS id`)
	w.exec(t, `CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO written VALUES (tg_op); RETURN coalesce(NEW, OLD); END $$`)
	w.exec(t, `CREATE TRIGGER i INSTEAD OF INSERT OR UPDATE OR DELETE ON v FOR EACH ROW EXECUTE FUNCTION instead()`)
	w.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC; SELECT fence.protect('v', resource => 'orders/1')`)
	stale := w.acquire(t, "orders/1", 1)
	current := w.acquire(t, "orders/1", 2)
	conn := w.session(t)
	for _, sql := range []string{`INSERT INTO v VALUES (1)`, `UPDATE v SET id = 2`, `DELETE FROM v`, `UPDATE v SET id = 1 WHERE false`} {
		wantUnder(t, conn, stale, sql, "ZF001")
		wantUnder(t, conn, current, sql, "")
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, err, "ZF002")
	}
	if _, err := connect(t, w.pg.URL, "-c session_replication_role=replica").Exec(t.Context(), `DELETE FROM v`); err != nil { // replica mode skips the triggers that write, too
		t.Error(err)
	}
	if n := value[int](t, w, `SELECT count(*) FROM written`); n != 0 {
		t.Errorf("%d writes got through", n)
	}
	if got := guards(t, w, "v") + uncovered(t, w); got != "v orders/1" {
		t.Error(got)
	}
	_, err := w.admin.Exec(t.Context(), `SELECT fence.protect('v', per_row => 'id')`)
	wantCode(t, err, "22023")
	w.exec(t, `SELECT fence.unprotect('v')`)
	if got := guards(t, w, "v"); got != "" {
		t.Error(got)
	}
}

// fence.uncovered reports the loss of any trigger of a protection.
func TestUncoveredMissesNoTriggerOfRows(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE marked (id int, stamp bigint); CREATE TABLE constant (id int, stamp bigint)`)
	for table, triggers := range map[string]string{"marked": "fence_guard fence_insert fence_update fence_delete fence_stamp", "constant": "fence_guard fence_insert fence_update fence_stamp"} {
		protect := `SELECT fence.protect('marked', per_row => $$'docs/' || id$$, stamp => 'stamp')`
		if table == "constant" {
			protect = `SELECT fence.protect('constant', resource => 'docs', stamp => 'stamp')`
		}
		for trigger := range strings.FieldsSeq(triggers) {
			for _, sql := range []string{`DROP TRIGGER ` + trigger + ` ON ` + table, `ALTER TABLE ` + table + ` DISABLE TRIGGER ` + trigger, `ALTER TABLE ` + table + ` ENABLE TRIGGER ` + trigger, `ALTER TABLE ` + table + ` ENABLE REPLICA TRIGGER ` + trigger} {
				w.exec(t, protect)
				if got := uncovered(t, w); got != "" {
					t.Fatalf("uncovered: %s", got)
				}
				w.exec(t, sql)
				if got := uncovered(t, w); !strings.Contains(got, table+": ") {
					t.Errorf("%s is not missed: %q", sql, got)
				}
			}
		}
		w.exec(t, `SELECT fence.unprotect('`+table+`')`)
	}
	const left = `SELECT count(*) FROM pg_proc WHERE pronamespace = 'fence'::regnamespace AND proname ~ '_[0-9]+$'`
	if n := value[int](t, w, left); n != 0 {
		t.Errorf("%d functions stay", n)
	}
}
