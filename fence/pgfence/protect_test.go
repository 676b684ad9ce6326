package pgfence_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// under runs one statement in a transaction that presents g.
func under(t testing.TB, conn *pgx.Conn, g fence.Grant, sql string) error {
	t.Helper()
	tx := begin(t, conn, pgx.ReadCommitted, g)
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		_ = tx.Rollback(t.Context())
		return err
	}
	return tx.Commit(t.Context())
}

func TestProtectCoversEveryKindOfWrite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE source AS SELECT 1 AS token; GRANT ALL ON source TO PUBLIC`)
	stale := w.acquire(t, orders, 34)
	current := w.acquire(t, orders, 35)
	conn := w.session(t)
	writes := []string{
		`INSERT INTO work (token) VALUES (1)`,
		`INSERT INTO work (token) SELECT 1 WHERE false`,
		`INSERT INTO work (id) VALUES (1) ON CONFLICT DO NOTHING`,
		`UPDATE work SET token = 2 WHERE false`,
		`DELETE FROM work WHERE false`,
		`WITH w AS (DELETE FROM work RETURNING 1) SELECT * FROM w`,
		`TRUNCATE work`,
		`DO $$ BEGIN INSERT INTO work (token) VALUES (1); EXCEPTION WHEN unique_violation THEN NULL; END $$`,
	}
	if value[int](t, w, `SELECT current_setting('server_version_num')::int`) >= 150000 {
		writes = append(writes, `MERGE INTO work USING source s ON work.token = s.token WHEN MATCHED THEN UPDATE SET note = 'm' WHEN NOT MATCHED THEN INSERT (token) VALUES (s.token)`)
	}
	for _, sql := range writes {
		wantCode(t, under(t, conn, stale, sql), "ZF001")
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("without a grant: %s", sql)
		} else {
			wantCode(t, err, "ZF002")
		}
		if err := under(t, conn, current, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	const copying = `COPY work (token) FROM STDIN`
	_, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader("1\n"), copying)
	wantCode(t, err, "ZF002")
	tx := begin(t, conn, pgx.ReadCommitted, current)
	if _, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader("1\n"), copying); err != nil {
		t.Errorf("COPY: %v", err)
	}
	_ = tx.Rollback(t.Context())
	if err := under(t, conn, stale, `SELECT FROM work`); err != nil {
		t.Errorf("reading needs no grant: %v", err)
	}
}

func TestProtectCoversPartitionsAndChildren(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE parted (id int) PARTITION BY RANGE (id)`)
	w.exec(t, `CREATE TABLE "Leaf 1" PARTITION OF parted FOR VALUES FROM (0) TO (10)`)
	w.exec(t, `CREATE TABLE mid PARTITION OF parted FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)`)
	w.exec(t, `CREATE TABLE leaf2 PARTITION OF mid FOR VALUES FROM (10) TO (20)`)
	w.exec(t, `CREATE TABLE parent (id int); CREATE TABLE child () INHERITS (parent); CREATE TABLE grandchild () INHERITS (child)`)
	w.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('parted', resource => $1), fence.protect('parent', resource => $1)`, orders)
	g := w.acquire(t, orders, 34)
	conn := w.session(t)
	for _, table := range []string{"parted", `"Leaf 1"`, "mid", "leaf2", "parent", "child", "grandchild"} {
		id := 1
		if table == "mid" || table == "leaf2" {
			id = 11
		}
		for _, sql := range []string{fmt.Sprintf(`INSERT INTO %s VALUES (%d)`, table, id), `UPDATE ` + table + ` SET id = id`, `TRUNCATE ` + table} {
			_, err := conn.Exec(t.Context(), sql)
			wantCode(t, err, "ZF002")
			if err := under(t, conn, g, sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.uncovered`); n != 0 {
		t.Errorf("%d uncovered", n)
	}
	w.exec(t, `SELECT fence.unprotect('parted')`)
	if n := value[int](t, w, `SELECT count(*) FROM fence.protected WHERE relation IN ('parted', '"Leaf 1"', 'mid', 'leaf2')`); n != 0 {
		t.Errorf("%d guards stay", n)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO parted VALUES (1)`); err != nil {
		t.Error(err)
	}
}

func TestUncoveredListsTheGaps(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE parted (id int) PARTITION BY RANGE (id)`)
	w.exec(t, `SELECT fence.protect('parted', resource => $1)`, orders)
	w.exec(t, `CREATE TABLE late PARTITION OF parted FOR VALUES FROM (0) TO (10)`)
	w.exec(t, `ALTER TABLE work DISABLE TRIGGER fence_guard`)
	got := value[string](t, w, `SELECT string_agg(relation || ': ' || reason, '; ' ORDER BY relation::text) FROM fence.uncovered`)
	if !strings.Contains(got, "late: is a partition") || !strings.Contains(got, "work: guard fence_guard is disabled") {
		t.Errorf("uncovered: %s", got)
	}
	w.exec(t, `SELECT fence.protect('parted', resource => $1), fence.protect('work', resource => $1)`, orders)
	if n := value[int](t, w, `SELECT count(*) FROM fence.uncovered`); n != 0 {
		t.Errorf("%d uncovered after protecting again", n)
	}
}

// The guards also fire in replica mode, in which ORIGIN triggers do not.
func TestTheGuardHoldsInReplicaMode(t *testing.T) {
	t.Parallel()
	w := setup(t)
	_, err := connect(t, w.pg.URL, "-c session_replication_role=replica").Exec(t.Context(), `INSERT INTO work DEFAULT VALUES`)
	wantCode(t, err, "ZF002")
}

func TestAPrefixNeedsSomeResourceBelowIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.protect('work', under => 'orders/')`)
	conn := w.session(t)
	if err := attempt(t, conn, pgx.ReadCommitted, orders, w.acquire(t, orders, 1).Presented()); err != nil {
		t.Error(err)
	}
	if err := attempt(t, conn, pgx.ReadCommitted, "orders/%C3%A4", w.acquire(t, "orders/ä", 1).Presented()); err != nil {
		t.Error(err)
	}
	err := attempt(t, conn, pgx.ReadCommitted, "ordersx/1", w.acquire(t, "ordersx/1", 1).Presented())
	wantCode(t, err, "ZF004")
	if pg := refusalOf(t, err); !strings.Contains(pg.Detail, `"orders/*"`) {
		t.Errorf("DETAIL %s", pg.Detail)
	}
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, "", ""), "ZF002")
	got := value[string](t, w, `SELECT concat_ws('|', resource, under, guard, complete) FROM fence.protected`)
	if got != "orders/|fence_guard|t" {
		t.Errorf("fence.protected says %s", got)
	}
}

func TestProtectTakesAnyName(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, name := range []string{`o'brien`, `back\slash`, `"quoted"`, `$1 %s %I`, `ärger/日本`, strings.Repeat("x", 512)} {
		w.exec(t, `SELECT fence.protect('work', resource => $1)`, name)
		if got := value[string](t, w, `SELECT resource FROM fence.protected`); got != name {
			t.Errorf("fence.protected says %q, want %q", got, name)
		}
		if err := under(t, w.session(t), w.acquire(t, name, 1), `DELETE FROM work`); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if len(name) < 500 {
			w.exec(t, `SELECT fence.protect('work', under => $1)`, name+"/")
			if got := value[string](t, w, `SELECT under FROM fence.protected`); got != name+"/" {
				t.Errorf("fence.protected says %q, want %q", got, name+"/")
			}
		}
	}
}

func TestProtectRefuses(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE VIEW v AS SELECT 1; CREATE VIEW auto AS SELECT * FROM work; CREATE SEQUENCE s`)
	w.exec(t, `CREATE VIEW ruled AS SELECT 1 AS id; CREATE RULE r AS ON INSERT TO ruled DO INSTEAD INSERT INTO work (id) VALUES (new.id)`)
	for args, want := range map[string]string{
		`'work', resource => 'r', mode => 'x'`:        "22023 mode",
		`'work', resource => 'r', per_row => 'note'`:  "22023 either",
		`'work', resource => 'r', stamp => 'nowhere'`: "22023 no ordinary column",
		`'work', resource => 'r', stamp => 'note'`:    "22023 no ordinary column",
		`'work'`:                                           "22023 either",
		`'work', resource => 'r', under => 'u/'`:           "22023 either",
		`'work', resource => ''`:                           "22023 empty",
		`'work', resource => 'a*'`:                         "22023 patterns",
		`'work', resource => E'a\n'`:                       "22023 control",
		`'work', resource => repeat('x', 513)`:             "22023 513 bytes",
		`'work', under => 'orders'`:                        "22023 '/'",
		`'work', under => ''`:                              "22023 '/'",
		`'v', resource => 'r'`:                             "22023 nobody can write to",
		`'auto', resource => 'r'`:                          "22023 protect that one",
		`'ruled', resource => 'r'`:                         "22023 protect that one",
		`'s', resource => 'r'`:                             "22023 not a table",
		`'nowhere', resource => 'r'`:                       "42P01 nowhere",
		`0::regclass, resource => 'r'`:                     "22023 no such table",
		`'pg_catalog.pg_class'::regclass, resource => 'r'`: "42501 system catalog",
	} {
		_, err := w.admin.Exec(t.Context(), `SELECT fence.protect(`+args+`)`)
		if err == nil {
			t.Errorf("%s: done", args)
			continue
		}
		code, text, _ := strings.Cut(want, " ")
		if pg := refusalOf(t, err); pg.Code != code || !strings.Contains(pg.Message, text) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

func TestOnlyTheOwnerMayProtect(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, address := range []string{w.pg.OtherURL, w.pg.WriterURL, w.pg.GatewayURL} {
		conn := connect(t, address)
		for _, sql := range []string{`SELECT fence.protect('work', resource => 'mine')`, `SELECT fence.unprotect('work')`} {
			_, err := conn.Exec(t.Context(), sql)
			wantCode(t, err, "42501")
		}
	}
	owner := connect(t, w.pg.As(t))
	login := pgx.Identifier{owner.Config().User}.Sanitize()
	w.exec(t, `ALTER TABLE work OWNER TO `+login)
	_, err := owner.Exec(t.Context(), `SELECT fence.protect('work', resource => 'mine')`)
	if wantCode(t, err, "42501"); !strings.Contains(refusalOf(t, err).Hint, "GRANT fence_protector TO "+owner.Config().User) {
		t.Errorf("it does not say what to grant: %v", err)
	}
	w.exec(t, `GRANT fence_protector TO `+login)
	for _, sql := range []string{`SELECT fence.protect('work', resource => 'mine')`, `SELECT * FROM fence.protected, fence.uncovered`, `SELECT fence.unprotect('work')`} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Errorf("the owner: %s: %v", sql, err)
		}
	}
}
