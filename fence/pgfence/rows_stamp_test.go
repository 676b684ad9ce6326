package pgfence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// stamps returns the stamps of a table's rows, by their IDs.
func stamps(t *testing.T, tx pgx.Tx, table string) string {
	t.Helper()
	var got string
	if err := tx.QueryRow(t.Context(), `SELECT coalesce(string_agg(id || '=' || coalesce(stamp::text, 'NULL'), ' ' ORDER BY id), '') FROM `+table).Scan(&got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAStampNamesTheTokenThatWroteTheRow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE marked (id int PRIMARY KEY, doc text, stamp bigint); CREATE TABLE parted (id int, doc text, stamp bigint) PARTITION BY LIST (id)`)
	w.exec(t, `CREATE TABLE p1 PARTITION OF parted FOR VALUES IN (1, 2, 3, 4, 5); CREATE TABLE p6 PARTITION OF parted FOR VALUES IN (6, 7, 8, 9); GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC`)
	g := w.acquire(t, "docs/1", 34)
	for _, how := range []string{`resource => 'docs/1'`, `under => 'docs/'`, `per_row => $$'docs/' || doc$$`} {
		for _, table := range []string{"marked", "parted"} {
			w.exec(t, `SELECT fence.protect('`+table+`', `+how+`, stamp => 'stamp')`)
			for _, presented := range []fence.Grant{g, {Resource: g.Resource, Seal: g.Seal}} {
				conn := w.session(t)
				tx := begin(t, conn, pgx.ReadCommitted, presented)
				for _, sql := range []string{
					`INSERT INTO ` + table + ` VALUES (1, '1', 99), (2, '1', NULL)`,
					`INSERT INTO ` + table + ` (id, doc) VALUES (3, '1')`,
					`UPDATE ` + table + ` SET stamp = 7 WHERE id = 3`,
					`MERGE INTO ` + table + ` m USING (VALUES (2), (4)) s(id) ON m.id = s.id WHEN MATCHED THEN UPDATE SET stamp = 1 WHEN NOT MATCHED THEN INSERT VALUES (s.id, '1', 1)`,
				} {
					if _, err := tx.Exec(t.Context(), sql); err != nil {
						t.Fatalf("%s, %s: %v", how, sql, err)
					}
				}
				if _, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader("5\t1\t8\n6\t1\t\\N\n"), `COPY `+table+` FROM STDIN`); err != nil {
					t.Fatal(err)
				}
				want := "1=34 2=34 3=34 4=34 5=34 6=34"
				if table == "marked" {
					if _, err := tx.Exec(t.Context(), `INSERT INTO marked VALUES (1, '1') ON CONFLICT (id) DO UPDATE SET stamp = NULL`); err != nil {
						t.Fatal(err)
					}
				} else if _, err := tx.Exec(t.Context(), `UPDATE parted SET id = 7 WHERE id = 1`); err != nil { // into the other partition
					t.Fatal(err)
				} else {
					want = "2=34 3=34 4=34 5=34 6=34 7=34"
				}
				if got := stamps(t, tx, table); got != want {
					t.Errorf("%s, %s, %s: %s, want %s", how, table, presented, got, want)
				}
				_ = tx.Rollback(t.Context())
			}
		}
	}
	if got := uncovered(t, w); got != "" {
		t.Errorf("uncovered: %s", got)
	}
}

// Neither a setting that the statement changes while it runs nor a later trigger can forge a stamp.
func TestAStampCannotBeForged(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE marked (id int, stamp bigint); GRANT ALL ON marked TO PUBLIC; SELECT fence.protect('marked', resource => 'docs/1', stamp => 'stamp')`)
	g, other := w.acquire(t, "docs/1", 34), w.acquire(t, "docs/2", 99)
	conn := connect(t, w.pg.OtherURL)
	for forged, want := range map[string]string{"99." + g.Seal.Reveal(): "ZF003", "0." + other.Seal.Reveal(): "ZF001", "x": "ZF003", "34": ""} {
		const sql = `INSERT INTO marked SELECT i, length(set_config('fence.token', CASE i WHEN 1 THEN $1 ELSE $2 END, true)) FROM generate_series(1, 2) i`
		tx := begin(t, conn, pgx.ReadCommitted, g)
		_, err := tx.Exec(t.Context(), sql, forged, g.Presented())
		if want == "" { // the correct token is no forgery
			if err != nil || stamps(t, tx, "marked") != "1=34 2=34" {
				t.Errorf("%v", err)
			}
		} else {
			wantCode(t, err, want)
			hidden(t, refusalOf(t, err), g.Seal.Reveal())
		}
		_ = tx.Rollback(t.Context())
	}
	// The statement presents another grant for a while.
	tx := begin(t, conn, pgx.ReadCommitted, g)
	_, err := tx.Exec(t.Context(), `INSERT INTO marked SELECT i, length(set_config('fence.resource', 'docs/2', true) || set_config('fence.token', $1, true)) FROM generate_series(1, 2) i`, other.Presented())
	wantCode(t, err, "ZF004")
	_ = tx.Rollback(t.Context())

	w.exec(t, `CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.stamp := 98; RETURN NEW; END $$`)
	w.exec(t, `CREATE TRIGGER zzz BEFORE INSERT ON marked FOR EACH ROW EXECUTE FUNCTION late()`)
	wantUnder(t, conn, g, `INSERT INTO marked VALUES (1)`, "ZF003")
}

func TestOfSeveralGrantsTheRowsOwnIsStamped(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE marked (id int, doc text, stamp bigint); GRANT ALL ON marked TO PUBLIC; SELECT fence.protect('marked', per_row => $$'docs/' || doc$$, stamp => 'stamp')`)
	one, two := w.acquire(t, "docs/1", 34), w.acquire(t, "docs/2", 99)
	tx, err := w.session(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := pgfence.Use(t.Context(), tx, two, one); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO marked VALUES (1, '1'), (2, '2')`); err != nil {
		t.Fatal(err)
	}
	if got := stamps(t, tx, "marked"); got != "1=34 2=99" {
		t.Error(got)
	}
	_ = tx.Rollback(t.Context())
}

// On a subscriber the publisher's stamps are kept, and the row guards let the worker pass.
func TestASubscriptionKeepsResourcesAndStamps(t *testing.T) {
	t.Parallel()
	publisher, w := setup(t), setup(t)
	for _, w := range []world{publisher, w} {
		w.exec(t, `CREATE TABLE shared (id int PRIMARY KEY, doc text, stamp bigint)`)
	}
	slot := "s_" + publisher.pg.Database
	publisher.exec(t, `INSERT INTO shared VALUES (1, '1', 34); CREATE PUBLICATION p FOR TABLE shared`)
	publisher.exec(t, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	t.Cleanup(func() { dropSlot(t, publisher, slot) })
	w.exec(t, `SELECT fence.protect('shared', per_row => $$'docs/' || doc$$, stamp => 'stamp')`)
	w.exec(t, `CREATE SUBSCRIPTION s CONNECTION '`+publisher.pg.URL+`' PUBLICATION p WITH (create_slot = false, slot_name = '`+slot+`')`)
	t.Cleanup(func() { dropSubscription(t, w) })
	w.waitFor(t, "the copy is done", `SELECT count(*) = 1 FROM shared WHERE stamp = 34`)
	w.waitFor(t, "changes are applied", `SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel`)
	publisher.exec(t, `INSERT INTO shared VALUES (2, '2', 99); UPDATE shared SET stamp = 35, doc = 'x' WHERE id = 1`)
	w.waitFor(t, "rows are applied", `SELECT string_agg(id || doc || stamp, ' ' ORDER BY id) = '1x35 2299' FROM shared`)
	publisher.exec(t, `DELETE FROM shared WHERE id = 1`)
	w.waitFor(t, "DELETE is applied", `SELECT count(*) = 1 FROM shared`)
	publisher.exec(t, `TRUNCATE shared`)
	w.waitFor(t, "TRUNCATE is applied", `SELECT count(*) = 0 FROM shared`)
	for _, sql := range []string{`TRUNCATE shared`, `INSERT INTO shared VALUES (1)`} { // only the worker passes
		if _, err := connect(t, w.pg.URL, "-c session_replication_role=replica").Exec(t.Context(), sql); err == nil {
			t.Errorf("done: %s", sql)
		}
	}
}

// PL/pgSQL reserves words that SQL allows as names, so format's %I does not quote them.
func TestColumnsMayHaveNamesThatPLpgSQLKeepsForItself(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.session(t)
	for i, name := range []string{"begin", "by", "declare", "execute", "foreach", "if", "loop", "strict", "while", `"when"`, `"Q""uoted"`} {
		w.exec(t, `CREATE TABLE kept (id int PRIMARY KEY, doc text, `+name+` bigint); CREATE TABLE needed (`+name+` text, stamp bigint)`)
		w.exec(t, `GRANT ALL ON kept, needed TO PUBLIC; SELECT fence.protect('kept', resource => 'docs/1', stamp => '`+strings.Trim(strings.ReplaceAll(name, `""`, `"`), `"`)+`')`)
		w.exec(t, `SELECT fence.protect('needed', per_row => $$'docs/' || `+name+`$$, stamp => 'stamp')`)
		g := w.acquire(t, "docs/1", fence.Token(i+1))
		for _, presented := range []fence.Grant{g, {Resource: g.Resource, Seal: g.Seal}} {
			tx := begin(t, conn, pgx.ReadCommitted, presented)
			for _, sql := range []string{`INSERT INTO kept VALUES (1, '1', 99)`, `UPDATE kept SET doc = '2'`, `INSERT INTO needed VALUES ('1')`, `UPDATE needed SET stamp = 3`} {
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Fatalf("%s, %s: %v", name, sql, err)
				}
			}
			var kept, needed fence.Token
			if err := tx.QueryRow(t.Context(), `SELECT (SELECT `+name+` FROM kept), (SELECT stamp FROM needed)`).Scan(&kept, &needed); err != nil || kept != g.Token || needed != g.Token {
				t.Errorf("%s: stamped %d and %d, want %d: %v", name, kept, needed, g.Token, err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.exec(t, `DROP TABLE kept, needed`)
	}
}
