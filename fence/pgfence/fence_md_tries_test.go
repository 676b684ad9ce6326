package pgfence_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// nobody presents no grant.
var nobody fence.Grant

// tries are statements of docs/fence.md, in its words and its order, with tests of their effect.
var tries = []struct {
	says string
	try  func(t *testing.T, w world)
}{
	{"and also for the table's owner and a superuser. Reading needs no grant.", func(t *testing.T, w world) {
		owner := ownerOf(t, w)
		run(t, owner, `CREATE TABLE mine (id int)`, `SELECT fence.protect('mine', resource => 'mine')`, `SELECT * FROM mine`)
		wantUnder(t, owner, nobody, `INSERT INTO own.mine VALUES (1)`, "ZF002")
		wantUnder(t, connect(t, w.pg.URL), nobody, `INSERT INTO own.mine VALUES (1)`, "ZF002")
	}},
	{"Protecting again replaces the earlier rule;", func(t *testing.T, w world) {
		g := w.acquire(t, orders, 34)
		w.exec(t, `SELECT fence.protect('work', resource => 'another')`)
		wantUnder(t, w.session(t), g, `INSERT INTO work (token) VALUES (1)`, "ZF004")
		if n := value[int](t, w, `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'work'::regclass AND NOT tgisinternal`); n != 1 {
			t.Errorf("%d triggers, want 1", n)
		}
	}},
	{"Protecting, enforcing and refreshing take the lock that `CREATE TRIGGER` takes (`SHARE ROW EXCLUSIVE`), so they wait for the writers at work; readers go on.", func(t *testing.T, w world) {
		tx := begin(t, w.session(t), pgx.ReadCommitted, w.acquire(t, orders, 34))
		if err := write(t.Context(), tx, 34); err != nil {
			t.Fatal(err)
		}
		const sql = `SELECT fence.protect('work', resource => 'another')`
		wantCode(t, statement(`SET lock_timeout = '20ms'; `+sql)(t.Context(), connect(t, w.pg.URL)), "55P03")
		_ = tx.Rollback(t.Context())
		tx, err := w.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		if !value[bool](t, w, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'work'::regclass AND mode = 'ShareRowExclusiveLock')`) {
			t.Error("another lock")
		}
		_ = tx.Rollback(t.Context())
	}},
	{"A grant in the connection's settings needs no right in the schema `fence`.", func(t *testing.T, w world) {
		other := connect(t, w.pg.OtherURL)
		wantUnder(t, other, w.acquire(t, orders, 34), `INSERT INTO work (token) VALUES (1)`, "")
		if value[bool](t, w, `SELECT has_schema_privilege($1, 'fence', 'CREATE') OR pg_has_role($1, 'fence_writer', 'MEMBER')`, other.Config().User) {
			t.Error("that login has rights")
		}
	}},
	{"DETAIL has `\"ended\": true`, and `recorded` is the presented token", func(t *testing.T, w world) {
		g := w.acquire(t, orders, 34)
		w.end(t, g)
		err := under(t, w.session(t), g, `INSERT INTO work (token) VALUES (1)`)
		var detail struct {
			Ended    bool
			Recorded fence.Token
		}
		if wantCode(t, err, "ZF001"); json.Unmarshal([]byte(refusalOf(t, err).Detail), &detail) != nil || !detail.Ended || detail.Recorded != 34 {
			t.Errorf("DETAIL %s", refusalOf(t, err).Detail)
		}
	}},
	{"it names the table, and how each driver presents one", func(t *testing.T, w world) {
		err := under(t, w.session(t), nobody, `INSERT INTO work (token) VALUES (1)`)
		wantCode(t, err, "ZF002")
		pg := refusalOf(t, err)
		if !strings.Contains(pg.Message, "public.work") {
			t.Errorf("message %s", pg.Message)
		}
		for _, driver := range []string{"libpq", "psycopg", "JDBC", "pgx", "asyncpg"} {
			if !strings.Contains(pg.Hint, driver) {
				t.Errorf("no %s in: %s", driver, pg.Hint)
			}
		}
	}},
	{"What is not a write is not covered: DDL by a table's owner (`DROP`, `ALTER COLUMN … TYPE … USING`, attaching a table that holds rows).", func(t *testing.T, w world) {
		owner := ownerOf(t, w)
		run(t, owner, `CREATE TABLE p (id int, note text) PARTITION BY LIST (id); CREATE TABLE filled AS SELECT 1 AS id, 'a' AS note`,
			`SELECT fence.protect('p', resource => 'p')`, `ALTER TABLE p ATTACH PARTITION own.filled FOR VALUES IN (1)`,
			`ALTER TABLE p ALTER COLUMN note TYPE text USING 'changed'`)
		if got := value[string](t, w, `SELECT note FROM own.p`); got != "changed" {
			t.Errorf("the row says %q", got)
		}
		run(t, owner, `DROP TABLE p`)
	}},
	{"A foreign table is protected where it lives. Sequences are not rows.", func(t *testing.T, w world) {
		w.exec(t, `CREATE FOREIGN DATA WRAPPER none; CREATE SERVER none FOREIGN DATA WRAPPER none; CREATE FOREIGN TABLE far (id int) SERVER none`)
		_, err := w.admin.Exec(t.Context(), `SELECT fence.protect('far', resource => 'far')`)
		if wantCode(t, err, "22023"); !strings.Contains(err.Error(), "where it lives") {
			t.Error(err)
		}
		run(t, w.session(t), `SELECT nextval('work_id_seq')`)
	}},
	{"After renaming a column that the expression uses, or changing its type, writes fail until the table is protected again.", func(t *testing.T, _ world) {
		w, one, _ := perRow(t)
		conn := w.session(t)
		for _, change := range []string{`RENAME doc TO paper`, `ALTER paper TYPE varchar(99)`} {
			w.exec(t, `ALTER TABLE items `+change)
			if under(t, conn, one, `UPDATE items SET note = 'n' WHERE id = 1`) == nil {
				t.Errorf("%s: a write passes", change)
			}
			w.exec(t, `SELECT fence.protect('items', per_row => $$'docs/' || paper$$)`)
			wantUnder(t, conn, one, `UPDATE items SET note = 'n' WHERE id = 1`, "")
		}
	}},
	{"take the lock of the grant that it presents, and be refused. A direct caller can also learn whether a resource has a fence, and its recorded token.", func(t *testing.T, w world) {
		other := connect(t, w.pg.OtherURL)
		g := w.acquire(t, orders, 34)
		tx := begin(t, other, pgx.ReadCommitted, g)
		var token int64
		if err := tx.QueryRow(t.Context(), `SELECT fence.judge($1)`, orders).Scan(&token); err != nil || token != 34 {
			t.Errorf("%d, %v", token, err)
		}
		if n := value[int](t, w, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1`, other.PgConn().PID()); n != 1 {
			t.Errorf("%d advisory locks", n)
		}
		_ = tx.Rollback(t.Context())
		for resource, want := range map[string]string{orders: `"recorded":"34"`, "unknown": ""} {
			tx := begin(t, other, pgx.ReadCommitted, fence.Grant{Resource: resource, Token: 1, Seal: fence.NewSeal()})
			_, err := tx.Exec(t.Context(), `SELECT fence.judge($1)`, resource)
			if detail := refusalOf(t, err).Detail; !strings.Contains(detail, want) || want == "" && strings.Contains(detail, "recorded") {
				t.Errorf("%s: DETAIL %s", resource, detail)
			}
			_ = tx.Rollback(t.Context())
		}
	}},
	{"but partitions with a resource per row or a stamp share one.", func(t *testing.T, w world) {
		w.exec(t, `CREATE TABLE days (day int) PARTITION BY LIST (day); CREATE TABLE day1 PARTITION OF days FOR VALUES IN (1); GRANT ALL ON days, day1 TO PUBLIC`)
		w.exec(t, `SELECT fence.protect('days', per_row => $$'days/' || day$$)`)
		wantUnder(t, w.session(t), nobody, `INSERT INTO day1 VALUES (1)`, "ZF002")
		if all, one := w.refused(t, "days"), w.refused(t, "day1"); all != 1 || one != 1 {
			t.Errorf("counted %d and %d", all, one)
		}
	}},
	{"Protecting a table again (`fence.protect`, `fence refresh`, `fence enforce`) begins at 0.", func(t *testing.T, w world) {
		for _, again := range []string{`fence.protect('work', resource => 'orders/1001')`, `fence.refresh('work')`, `fence.enforce('work')`} {
			wantUnder(t, w.session(t), nobody, `INSERT INTO work (token) VALUES (1)`, "ZF002")
			if n := w.refused(t, "work"); n != 1 {
				t.Errorf("before %s: %d", again, n)
			}
			if w.exec(t, `SELECT `+again); w.refused(t, "work") != 0 {
				t.Errorf("%s leaves the count", again)
			}
		}
	}},
	{"`fence.use` and `fence.check` refuse before there is a table, so nothing is counted then. `refused` is NULL in report mode, which has `would_refuse`.", func(t *testing.T, w world) {
		conn := w.session(t)
		wantUnder(t, conn, nobody, `SELECT fence.use('orders/1001', '1.x')`, "ZF003")
		wantUnder(t, conn, nobody, `SELECT fence.check()`, "ZF002")
		if n := w.refused(t, "work"); n != 0 {
			t.Errorf("%d counted", n)
		}
		w.exec(t, `SELECT fence.protect('work', resource => 'orders/1001', mode => 'report')`)
		if !value[bool](t, w, `SELECT refused IS NULL AND would_refuse = 0 FROM fence.protected WHERE relation = 'work'::regclass`) {
			t.Error("not so")
		}
	}},
	{"After a crash a counter may be up to 32 too high, or miss the counts of the last second before it.", func(t *testing.T, _ world) {
		s := startServer(t)
		w := s.world(t)
		wantUnder(t, connect(t, s.URL("postgres")), nobody, `INSERT INTO work (token) VALUES (1)`, "ZF002")
		w.exec(t, `CREATE TABLE flushed ()`) // its COMMIT flushes the counter's WAL records
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		s.start(t)
		w.admin = poolWith(t, s.URL("postgres"), func(*pgxpool.Config) {})
		if n := w.refused(t, "work"); n < 1 || n > 33 {
			t.Errorf("%d counted", n)
		}
	}},
	{"Any login can add to the counts", func(t *testing.T, w world) {
		w.exec(t, `REVOKE ALL ON work FROM PUBLIC`)
		wantUnder(t, connect(t, w.pg.OtherURL), nobody, `SELECT fence.judge_rows('public.work', NULL, ARRAY['orders/1'], NULL, NULL)`, "ZF002")
		if n := w.refused(t, "work"); n != 1 {
			t.Errorf("%d counted", n)
		}
	}},
	{"DETAIL is JSON with `relation`, `operation`, `login`, `resource`, `needed`), and is counted in `fence.protected.would_refuse`, also for transactions that are rolled back.", func(t *testing.T, w world) {
		w.exec(t, `SELECT fence.protect('work', resource => 'orders/1001', mode => 'report')`)
		log := reported(t, w, w.acquire(t, "other", 1), `INSERT INTO work (token) VALUES (1)`)
		var detail map[string]any
		if len(log) != 1 || json.Unmarshal([]byte(log[0].Detail), &detail) != nil {
			t.Fatalf("%v", log)
		}
		for _, key := range []string{"relation", "operation", "login", "resource", "needed"} {
			if detail[key] == nil {
				t.Errorf("no %s in %s", key, log[0].Detail)
			}
		}
		wantUnder(t, w.session(t), nobody, `INSERT INTO work (token) VALUES (1)`, "") // rolls back
		if n := value[int](t, w, `SELECT would_refuse FROM fence.protected WHERE relation = 'work'::regclass`); n != 2 {
			t.Errorf("%d counted", n)
		}
	}},
	{"In report mode no stamp is filled.", func(t *testing.T, w world) {
		g, conn := w.acquire(t, orders, 34), w.session(t)
		w.exec(t, `SELECT fence.protect('work', resource => 'orders/1001', mode => 'report', stamp => 'token')`)
		for want, enforce := range []string{`SELECT 1`, `SELECT fence.enforce('work')`} {
			w.exec(t, enforce)
			if err := under(t, conn, g, `INSERT INTO work (token) VALUES (7)`); err != nil {
				t.Fatal(err)
			}
			if n := value[int](t, w, `SELECT count(*) FROM work WHERE token = 34`); n != want {
				t.Errorf("%s: %d rows are stamped, want %d", enforce, n, want)
			}
		}
	}},
	{"With several grants and a resource in a *generated* column, use one transaction per grant: the column is not yet computed when the stamp is filled.", func(t *testing.T, w world) {
		w.exec(t, `CREATE TABLE made (doc text, resource text GENERATED ALWAYS AS ('docs/' || doc) STORED, stamp bigint); GRANT ALL ON made TO PUBLIC`)
		w.exec(t, `SELECT fence.protect('made', per_row => 'resource', stamp => 'stamp')`)
		one, two := w.acquire(t, "docs/1", 34), w.acquire(t, "docs/2", 7)
		conn := w.session(t)
		wantUnder(t, conn, one, `INSERT INTO made VALUES ('1')`, "")
		err := pgfence.InTxAll(t.Context(), conn, pgfence.TxOptions{}, []fence.Grant{one, two}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO made VALUES ('1'), ('2')`)
			return err
		})
		wantCode(t, err, "ZF003") // each row has the other one's token
	}},
	{"When a lease is released, its grant ends. Each check then answers `ZF001`, `the lease of token 34 for \"orders/1001\" has ended`", func(t *testing.T, w world) {
		g := w.acquire(t, orders, 34)
		w.end(t, g)
		err := under(t, w.session(t), g, `INSERT INTO work (token) VALUES (1)`)
		if wantCode(t, err, "ZF001"); !strings.Contains(refusalOf(t, err).Message, `the lease of token 34 for "orders/1001" has ended`) {
			t.Error(err)
		}
	}},
	{"200 fences or 4 ms at most; returns `last`", func(t *testing.T, w world) {
		w.exec(t, `INSERT INTO fence.arms SELECT 'once/' || lpad(n::text, 4, '0') FROM generate_series(1, 250) n`)
		w.exec(t, `INSERT INTO fence.resources (resource, token, seal, holder, armed_at, ended_at)
			SELECT 'once/' || lpad(n::text, 4, '0'), 1, sha256(n::text::bytea), 'test', now(), now() - interval '1 year' FROM generate_series(1, 250) n`)
		mutateFunction(t, w, "fence.retire", `interval '4 ms'`, `interval '1 min'`) // see TestASlowRetirementEndsEarlyAndTheNextGoesOn
		gateway := connect(t, w.pg.GatewayURL)
		last := "once/"
		for _, want := range []int{50, 0} {
			var next *string
			if err := gateway.QueryRow(t.Context(), `SELECT last FROM fence.retire('30 days', $1)`, last).Scan(&next); err != nil {
				t.Fatal(err)
			}
			if n := value[int](t, w, `SELECT count(*) FROM fence.resources WHERE resource LIKE 'once/%'`); n != want {
				t.Errorf("%d are left, want %d", n, want)
			}
			if (next == nil) != (want == 0) {
				t.Fatalf("last is %v with %d left", next, want)
			} else if next != nil {
				last = *next
			}
		}
	}},
	{"Each try raises the fence, so no further write under the old grant passes.", func(t *testing.T, _ world) {
		w := setup(t, pgfence.WithGrace(10*time.Millisecond))
		g := w.acquire(t, orders, 34)
		tx := begin(t, w.session(t), pgx.ReadCommitted, g)
		if err := write(t.Context(), tx, 34); err != nil {
			t.Fatal(err)
		}
		gid := prepare(t, tx)
		defer w.exec(t, `ROLLBACK PREPARED '`+gid+`'`)
		w.refusesOver(t, arming(fence.Grant{Resource: orders, Token: 35, Seal: fence.NewSeal()}), gid)
		wantUnder(t, w.session(t), g, `INSERT INTO work (token) VALUES (1)`, "ZF001")
		// An operator ends it as its owner or a superuser, in the same database.
		other := connect(t, w.pg.OtherURL)
		wantCode(t, statement(`ROLLBACK PREPARED '`+gid+`'`)(t.Context(), other), "42501")
		elsewhere := connect(t, strings.Replace(w.pg.URL, "/"+w.pg.Database, "/postgres", 1))
		if statement(`ROLLBACK PREPARED '`+gid+`'`)(t.Context(), elsewhere) == nil {
			t.Error("rolled back from another database")
		}
	}},
	{"Without event triggers `fence.uncovered` lists a missing column, but not two columns that have swapped their names.", func(t *testing.T, _ world) {
		w, _, _ := perRow(t)
		w.exec(t, `ALTER TABLE items RENAME doc TO was; ALTER TABLE items RENAME note TO doc; ALTER TABLE items RENAME was TO note`)
		if got := uncovered(t, w); got != "" {
			t.Errorf("it sees: %s", got)
		}
		if w.exec(t, `ALTER TABLE items RENAME doc TO gone`); !strings.Contains(uncovered(t, w), "items") {
			t.Errorf("it does not see a missing column: %s", uncovered(t, w))
		}
	}},
	{"This equals `fence.unprotect`, and `fence.uncovered` does not list it.", func(t *testing.T, _ world) {
		w, _, _ := perRow(t)
		owner := ownerOf(t, w)
		run(t, owner, `CREATE TABLE a (doc text); CREATE TABLE b (doc text)`,
			`SELECT fence.protect('a', per_row => $$'x/' || doc$$), fence.protect('b', per_row => $$'docs/' || doc$$)`)
		number := value[int](t, w, `SELECT number FROM fence.protected WHERE relation = 'own.a'::regclass`)
		run(t, owner, `SELECT fence.unprotect('b')`)
		by := fmt.Sprintf(` FOR EACH STATEMENT EXECUTE FUNCTION fence.rows_%d('enforce', '', '')`, number)
		run(t, owner, fmt.Sprintf(`CREATE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON b FOR EACH STATEMENT EXECUTE FUNCTION fence.guard_rows('docs', '%d')`, number),
			`CREATE TRIGGER fence_insert AFTER INSERT ON b REFERENCING NEW TABLE AS new_rows`+by, `CREATE TRIGGER fence_delete AFTER DELETE ON b REFERENCING OLD TABLE AS old_rows`+by,
			`CREATE TRIGGER fence_update AFTER UPDATE ON b REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows`+by, `ALTER TABLE b ENABLE ALWAYS TRIGGER fence_guard`,
			`ALTER TABLE b ENABLE ALWAYS TRIGGER fence_insert; ALTER TABLE b ENABLE ALWAYS TRIGGER fence_delete; ALTER TABLE b ENABLE ALWAYS TRIGGER fence_update`)
		if got := uncovered(t, w); got != "" {
			t.Errorf("it is listed: %s", got)
		}
	}},
	{"They query the schema `fence` as the role `fence_events`, which has no members and only the rights of `fence_protector`", func(t *testing.T, w world) {
		w.exec(t, `SELECT fence.install_event_triggers()`)
		const sql = `SELECT coalesce(string_agg(DISTINCT %[1]s::regrole::text, ' '), '') FROM pg_auth_members WHERE %[2]s = 'fence_events'::regrole`
		if got := value[string](t, w, fmt.Sprintf(sql, "member", "roleid")); got != "" {
			t.Errorf("its members: %s", got)
		}
		if got := value[string](t, w, fmt.Sprintf(sql, "roleid", "member")); got != "fence_protector" {
			t.Errorf("it is a member of: %s", got)
		}
	}},
}
