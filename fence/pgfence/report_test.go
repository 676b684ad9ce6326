package pgfence_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
)

// reported runs a statement under a grant, on a table in report mode, and returns PostgreSQL's log messages about it.
func reported(t *testing.T, w world, g fence.Grant, sql string) (log []*pgconn.Notice) {
	t.Helper()
	config, err := pgx.ParseConfig(w.pg.OtherURL)
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { log = append(log, n) }
	config.RuntimeParams["client_min_messages"] = "log" // show the log to the session
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := under(t, conn, g, sql); err != nil {
		t.Errorf("%s: refused: %v", sql, err)
	}
	return log
}

func TestReportModeLogsAndRefusesNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{`resource => 'docs/1'`, `under => 'docs/'`, `per_row => $$'docs/' || doc$$`} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(t, `CREATE TABLE items (id int, doc text DEFAULT '1'); GRANT ALL ON items TO PUBLIC; INSERT INTO items VALUES (1)`)
			w.exec(t, `SELECT fence.protect('items', `+how+`, mode => 'report')`)
			stale := w.acquire(t, "docs/1", 34)
			current := w.acquire(t, "docs/1", 35)
			other := w.acquire(t, "other", 1)
			refusals := 0
			for _, c := range []struct {
				g    fence.Grant
				sql  string
				code string
			}{
				{current, `INSERT INTO items VALUES (2)`, ""},
				{stale, `INSERT INTO items VALUES (2)`, "ZF001"},
				{fence.Grant{}, `UPDATE items SET id = 3`, "ZF002"},
				{fence.Grant{Resource: "docs/1", Token: 35, Seal: stale.Seal}, `DELETE FROM items WHERE id = 3`, "ZF003"},
				{other, `INSERT INTO items VALUES (2)`, "ZF004"},
				{fence.Grant{}, `TRUNCATE items`, map[bool]string{true: "ZF004", false: "ZF002"}[how[0] == 'p']},
			} {
				log := reported(t, w, c.g, c.sql)
				if c.code == "" {
					if len(log) > 0 {
						t.Errorf("%s: %s", c.sql, log[0].Message)
					}
					continue
				}
				refusals++
				if len(log) != 1 || log[0].Code != c.code || log[0].Severity != "LOG" {
					t.Errorf("%s: %d lines, want one of %s: %v", c.sql, len(log), c.code, log)
					continue
				}
				var detail struct{ Relation, Operation, Login string }
				if err := json.Unmarshal([]byte(log[0].Detail), &detail); err != nil || detail.Relation != "public.items" || detail.Operation != c.sql[:len(detail.Operation)] {
					t.Errorf("DETAIL %s: %v", log[0].Detail, err)
				}
				hidden(t, (*pgconn.PgError)(log[0]), stale.Seal.Reveal())
			}
			if n := value[int](t, w, `SELECT would_refuse FROM fence.protected WHERE relation = 'items'::regclass`); n != refusals {
				t.Errorf("counted %d, want %d", n, refusals)
			}
			w.exec(t, `SELECT fence.enforce('items')`)
			conn := connect(t, w.pg.OtherURL)
			wantUnder(t, conn, stale, `INSERT INTO items VALUES (2)`, "ZF001")
			wantUnder(t, conn, other, `INSERT INTO items VALUES (2)`, "ZF004")
			wantUnder(t, conn, current, `INSERT INTO items VALUES (2)`, "")
			if n := value[int](t, w, `SELECT refused FROM fence.protected WHERE relation = 'items'::regclass`); n != 2 {
				t.Errorf("%d refusals counted, want 2", n)
			}
			if n := value[int](t, w, `SELECT count(*) FROM pg_class WHERE relname LIKE 'refused\_%'`); n != 2 { // of items, and of work
				t.Errorf("%d counters: one that nobody uses stays", n)
			}
		})
	}
}

// In report mode a write is not refused, so it takes no lock, and arming does not wait for it or end it.
func TestReportModeHoldsNoLock(t *testing.T) {
	t.Parallel()
	w, _, _ := perRow(t)
	w.exec(t, `SELECT fence.protect('items', per_row => $$'docs/' || doc$$, mode => 'report')`)
	g := w.acquire(t, "docs/1", 34)
	conn := w.session(t)
	for _, level := range levels {
		tx := begin(t, conn, level, g)
		if _, err := tx.Exec(t.Context(), `UPDATE items SET note = 'n'`); err != nil {
			t.Fatal(err)
		}
		if n := value[int](t, w, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1`, conn.PgConn().PID()); n != 0 {
			t.Errorf("%d advisory locks", n)
		}
		g.Token++
		g = w.acquire(t, "docs/1", g.Token)
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("the stale writer was not left alone: %v", err)
		}
	}
}

func TestEnforceNeedsAProtectedTable(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.unprotect('work')`)
	_, err := w.admin.Exec(t.Context(), `SELECT fence.enforce('work')`)
	wantCode(t, err, "55000")
}
