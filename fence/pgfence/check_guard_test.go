package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// ways are the ways to write to the table `guarded`, each to rows whose doc is 1.
// If touches is false, the statement finds no row. In replica mode PostgreSQL runs no cascades and no rules.
var ways = []struct {
	name         string
	touches      bool
	run          func(ctx context.Context, conn *pgx.Conn) error
	notInReplica bool
}{
	{"INSERT", true, statement(`INSERT INTO guarded VALUES (11, 1)`), false},
	{"INSERT of no row", false, statement(`INSERT INTO guarded SELECT 11, 1 WHERE false`), false},
	{"ON CONFLICT DO NOTHING", false, statement(`INSERT INTO guarded VALUES (1, 1) ON CONFLICT DO NOTHING`), false},
	{"ON CONFLICT DO UPDATE", true, statement(`INSERT INTO guarded VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET note = 'c'`), false},
	{"UPDATE", true, statement(`UPDATE guarded SET note = 'u' WHERE doc = 1`), false},
	{"UPDATE of no row", false, statement(`UPDATE guarded SET note = 'u' WHERE false`), false},
	{"DELETE", true, statement(`DELETE FROM guarded WHERE doc = 1`), false},
	{"DELETE of no row", false, statement(`DELETE FROM guarded WHERE false`), false},
	{"MERGE", true, statement(`MERGE INTO guarded g USING (VALUES (1), (11)) s(id) ON g.id = s.id WHEN MATCHED THEN UPDATE SET note = 'm' WHEN NOT MATCHED THEN INSERT (id, doc) VALUES (s.id, 1)`), false},
	{"MERGE that deletes", true, statement(`MERGE INTO guarded g USING (VALUES (1)) s(id) ON g.id = s.id WHEN MATCHED THEN DELETE`), false},
	{"CTE", true, statement(`WITH w AS (INSERT INTO guarded VALUES (11, 1) RETURNING id), x AS (UPDATE guarded SET note = 'w' WHERE id = 1) SELECT FROM w`), false},
	{"cascade of a DELETE", true, statement(`DELETE FROM docs WHERE id = 1`), true},
	{"SET NULL of a DELETE", true, statement(`DELETE FROM authors WHERE id = 1`), true},
	{"function", true, statement(`SELECT write_guarded()`), false},
	{"procedure that commits", true, statement(`CALL write_and_commit()`), false},
	{"DO", true, statement(`DO $$ BEGIN INSERT INTO guarded VALUES (11, 1); EXCEPTION WHEN unique_violation THEN NULL; END $$`), false},
	{"updatable view", true, statement(`UPDATE seen SET note = 'v' WHERE doc = 1`), false},
	{"rule", true, statement(`INSERT INTO ruled VALUES (11)`), true},
	{"COPY", true, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().CopyFrom(ctx, strings.NewReader("11\t1\n12\t1\n"), `COPY guarded (id, doc) FROM STDIN`)
		return err
	}, false},
	{"prepared statement", true, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Prepare(ctx, "again", `INSERT INTO guarded VALUES ($1, 1)`); err != nil {
			return err
		}
		for id := 11; id < 20; id++ { // afterwards the plan is generic
			if _, err := conn.Exec(ctx, "again", id); err != nil {
				return err
			}
		}
		return nil
	}, false},
	{"pipeline", true, func(ctx context.Context, conn *pgx.Conn) error {
		b := &pgx.Batch{}
		for _, sql := range []string{`BEGIN`, `INSERT INTO guarded VALUES (11, 1)`, `COMMIT`, `INSERT INTO guarded VALUES (12, 1)`} {
			b.Queue(sql)
		}
		return conn.SendBatch(ctx, b).Close()
	}, false},
	{"after ROLLBACK TO", true, func(ctx context.Context, conn *pgx.Conn) error {
		for _, sql := range []string{`BEGIN`, `SAVEPOINT s`, `INSERT INTO guarded VALUES (11, 1)`} {
			_, _ = conn.Exec(ctx, sql) // refused, or rolled back
		}
		return statement(`ROLLBACK TO s; INSERT INTO guarded VALUES (11, 1); COMMIT`)(ctx, conn)
	}, false},
}

func statement(sql string) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
}

// setupWays creates the table `guarded`, protected by how, and the objects that reach it.
func setupWays(t *testing.T, how string) world {
	t.Helper()
	w := setup(t)
	for _, sql := range []string{
		`CREATE TABLE docs (id bigint PRIMARY KEY); CREATE TABLE authors (id bigint PRIMARY KEY)`,
		`INSERT INTO docs VALUES (1), (2); INSERT INTO authors VALUES (1)`,
		`CREATE TABLE guarded (id bigint PRIMARY KEY, doc bigint REFERENCES docs ON DELETE CASCADE, author bigint REFERENCES authors ON DELETE SET NULL, note text)`,
		`INSERT INTO guarded VALUES (1, 1, 1), (2, 2, NULL)`,
		`CREATE FUNCTION write_guarded() RETURNS void LANGUAGE sql AS 'INSERT INTO guarded VALUES (11, 1)'`,
		`CREATE PROCEDURE write_and_commit() LANGUAGE plpgsql AS 'BEGIN INSERT INTO guarded VALUES (11, 1); COMMIT; INSERT INTO guarded VALUES (12, 1); END'`,
		`CREATE VIEW seen AS SELECT * FROM guarded`,
		`CREATE VIEW ruled AS SELECT 1::bigint AS id; CREATE RULE r AS ON INSERT TO ruled DO INSTEAD INSERT INTO guarded VALUES (new.id, 1)`,
		`GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC`,
		`SELECT fence.protect('guarded', ` + how + `)`,
	} {
		w.exec(t, sql)
	}
	return w
}

// content is the content of `guarded`, in one line.
func content(t *testing.T, w world) string {
	t.Helper()
	return value[string](t, w, `SELECT coalesce(string_agg(g::text, ' ' ORDER BY id), '') FROM guarded g`)
}

// Every way to write is refused without the needed grant and then changes nothing, and works under the current grant.
func TestEveryWayToWriteIsGuarded(t *testing.T) {
	t.Parallel()
	for _, how := range []string{`resource => 'orders/1'`, `under => 'orders/'`, `per_row => $$'orders/' || doc$$`} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := setupWays(t, how)
			stale := w.acquire(t, "orders/1", 34)
			current := w.acquire(t, "orders/1", 35)
			other := w.acquire(t, "other/1", 1)
			perRow := strings.HasPrefix(how, "per_row")
			sessions := []struct {
				name    string
				options []string
				want    string
				replica bool
			}{
				{"no grant", nil, "ZF002", false},
				{"no grant, in replica mode", []string{"-c session_replication_role=replica"}, "ZF002", true},
				{"stale", presenting(stale), "ZF001", false},
				{"forged", []string{"-c fence.resource=orders/1", "-c fence.token=36." + sealB}, "ZF003", false},
				{"of another resource", presenting(other), "ZF004", false},
				{"current", presenting(current), "", false},
			}
			if perRow {
				sessions[4].options = presenting(w.acquire(t, "orders/2", 7)) // of another row
			}
			before := content(t, w)
			for _, s := range sessions {
				conn := connect(t, w.pg.URL, s.options...) // even a superuser is not exempt
				for _, way := range ways {
					if s.replica && way.notInReplica {
						continue
					}
					want := s.want
					if want == "ZF004" && perRow && !way.touches {
						want = "" // any current grant may write zero rows
					}
					err := way.run(t.Context(), conn)
					if reset := errors.Join(statement(`ROLLBACK`)(t.Context(), conn), conn.DeallocateAll(t.Context())); reset != nil {
						t.Fatal(reset)
					}
					if want == "" && err != nil {
						t.Errorf("%s, %s: %v", s.name, way.name, err)
					} else if want != "" {
						if err == nil {
							t.Errorf("%s, %s: done", s.name, way.name)
						} else if pg := refusalOf(t, err); pg.Code != want {
							t.Errorf("%s, %s: %v, want %s", s.name, way.name, err, want)
						}
					}
					after := content(t, w)
					if (want != "" || !way.touches) && after != before {
						t.Errorf("%s, %s changed the table:\n%s", s.name, way.name, after)
					} else if want == "" && way.touches && after == before {
						t.Errorf("%s, %s changed nothing", s.name, way.name)
					}
					if after != before {
						refill(t, w, perRow)
					}
				}
			}
		})
	}
}

// refill restores the tables' initial content.
func refill(t *testing.T, w world, perRow bool) {
	t.Helper()
	guards := `ENABLE ALWAYS TRIGGER fence_guard`
	if perRow {
		guards += `, ENABLE ALWAYS TRIGGER fence_insert, ENABLE ALWAYS TRIGGER fence_update, ENABLE ALWAYS TRIGGER fence_delete`
	}
	const sql = `BEGIN; ALTER TABLE guarded DISABLE TRIGGER USER; DELETE FROM guarded;
		INSERT INTO docs VALUES (1) ON CONFLICT DO NOTHING; INSERT INTO authors VALUES (1) ON CONFLICT DO NOTHING;
		INSERT INTO guarded VALUES (1, 1, 1), (2, 2, NULL); ALTER TABLE guarded %s; COMMIT`
	w.exec(t, fmt.Sprintf(sql, guards), pgx.QueryExecModeSimpleProtocol)
}

// presenting are the startup options of a session under a grant.
func presenting(g fence.Grant) []string {
	return []string{"-c fence.resource=" + fence.EscapeResource(g.Resource), "-c fence.token=" + g.Presented()}
}
