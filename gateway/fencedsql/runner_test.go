//go:build unix

package fencedsql_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// world is a runner on a database with a table that the resource "r" guards.
type world struct {
	t     *testing.T
	pg    testenv.PG
	admin *pgxpool.Pool
	fence *pgfence.Fence
	run   *fencedsql.Runner
	grant fence.Grant
}

func setup(t *testing.T, opts ...func(*fencedsql.Config)) *world {
	t.Helper()
	pg := testenv.Postgres(t)
	w := &world{t: t, pg: pg, admin: pg.Pool(t), fence: pgfence.New(testenv.PoolOf(t, pg.GatewayURL))}
	w.exec("CREATE TABLE items (id int8 PRIMARY KEY, n numeric, note text, tags text[], doc jsonb, UNIQUE (note) DEFERRABLE INITIALLY DEFERRED)")
	w.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON items TO fence_writer")
	w.exec("SELECT fence.protect('items', resource => 'r')")
	w.grant = w.arm("r", 1)
	cfg := fencedsql.Config{URL: pg.WriterURL, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, o := range opts {
		o(&cfg)
	}
	run, err := fencedsql.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run.Close)
	w.run = run
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.admin.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) arm(resource string, token fence.Token) fence.Grant {
	w.t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	if err := w.fence.Arm(w.t.Context(), fence.Arming{Resource: resource, Token: token, SealHash: g.Seal.Hash(), Holder: "test"}); err != nil {
		w.t.Fatal(err)
	}
	return g
}

func (w *world) count() (n int) {
	w.t.Helper()
	if err := w.admin.QueryRow(w.t.Context(), "SELECT count(*) FROM items").Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// st returns a statement; args are JSON texts.
func st(sql string, args ...string) wire.Statement {
	s := wire.Statement{SQL: sql}
	for _, a := range args {
		s.Args = append(s.Args, json.RawMessage(a))
	}
	return s
}

func (w *world) ok(statements ...wire.Statement) []wire.Result {
	w.t.Helper()
	results, err := w.run.Run(w.t.Context(), w.grant, statements)
	if err != nil {
		w.t.Fatal(err)
	}
	return results
}

func (w *world) fails(statements ...wire.Statement) error {
	w.t.Helper()
	_, err := w.run.Run(w.t.Context(), w.grant, statements)
	if err == nil {
		w.t.Fatalf("%v: no error", statements)
	}
	return err
}

func rows(r wire.Result) string { return fmt.Sprintf("%s", r.Rows) }

func TestStatementsRunInOneTransactionUnderTheGrant(t *testing.T) {
	t.Parallel()
	w := setup(t)
	results := w.ok(
		st("INSERT INTO items (id, note) VALUES ($1, $2), ($3, NULL)", "1", `"a"`, "2"),
		st("SELECT id, note FROM items ORDER BY id"),
		st("DELETE FROM items WHERE id = $1 RETURNING note", "1"),
	)
	if r := results[0]; r.RowsAffected != 2 || r.Command != "INSERT 0 2" || len(r.Rows) != 0 || r.Rows == nil {
		t.Errorf("INSERT: %+v", r)
	}
	if got := rows(results[1]); got != `[["1","a"] ["2",null]]` {
		t.Errorf("SELECT: %s", got)
	}
	if r := results[2]; rows(r) != `[["a"]]` || r.RowsAffected != 1 {
		t.Errorf("DELETE RETURNING: %+v", r)
	}
	if n := w.count(); n != 1 {
		t.Errorf("%d rows committed, want 1", n)
	}
}

func TestErrorInTheMiddleCommitsNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	err := w.fails(st("INSERT INTO items (id) VALUES (1)"), st("SELECT nothing FROM items"), st("INSERT INTO items (id) VALUES (2)"))
	var failed *api.StatementError
	if !errors.As(err, &failed) || failed.Index != 1 || failed.SQLState != "42703" || failed.Position != 8 || !strings.Contains(failed.Message, "nothing") {
		t.Errorf("error %+v", err)
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
	// COMMIT itself checks this constraint.
	err = w.fails(st("INSERT INTO items (id, note) VALUES (1, 'same'), (2, 'same')"))
	if !errors.As(err, &failed) || failed.Index >= 0 || failed.SQLState != "23505" {
		t.Errorf("deferred constraint: %+v", err)
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
}

func TestFenceDecides(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec("CREATE TABLE others (id int); GRANT INSERT ON others TO fence_writer")
	w.exec("SELECT fence.protect('others', resource => 'other')")
	var failed *api.StatementError
	if err := w.fails(st("SELECT 1"), st("INSERT INTO others VALUES (1)")); !errors.Is(err, fence.ErrWrongResource) || !errors.As(err, &failed) || failed.Index != 1 {
		t.Errorf("wrong table: %v", err)
	}
	never := w.grant
	never.Seal = fence.NewSeal()
	if _, err := w.run.Run(t.Context(), never, []wire.Statement{st("SELECT 1")}); !errors.Is(err, fence.ErrNeverIssued) {
		t.Errorf("another seal: %v", err)
	}
	old := w.grant
	w.arm("r", 2)
	var stale *fence.StaleError
	if _, err := w.run.Run(t.Context(), old, []wire.Statement{st("SELECT 1")}); !errors.As(err, &stale) || stale.Presented != 1 || stale.Recorded != 2 {
		t.Errorf("stale: %v", err)
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
}

func TestGrantThatGoesStaleInTheMiddleLosesAll(t *testing.T) {
	t.Parallel()
	w := setup(t)
	// The statement waits for a lock that is released only after the fence was raised.
	w.exec("CREATE TABLE gate (id int); GRANT ALL ON gate TO fence_writer")
	blocker, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blocker.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := blocker.Exec(t.Context(), "LOCK TABLE gate"); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := w.run.Run(t.Context(), w.grant, []wire.Statement{st("INSERT INTO items (id) VALUES (1)"), st("SELECT * FROM gate")})
		failed <- err
	}()
	w.until("SELECT count(*) > 0 FROM pg_locks WHERE relation = 'gate'::regclass AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	w.arm("r", 2) // ends the transaction, which has passed the check under the previous grant
	if err := <-failed; !errors.Is(err, fence.ErrStale) {
		t.Errorf("%v; want stale", err)
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
}

// until waits for a query to return true.
func (w *world) until(sql string) {
	w.t.Helper()
	testenv.Eventually(w.t, sql, func() (yes bool) {
		if err := w.admin.QueryRow(w.t.Context(), sql).Scan(&yes); err != nil {
			w.t.Fatalf("%s: %v", sql, err)
		}
		return yes
	})
}

func TestValuesKeepTheirDigits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, c := range []struct{ sql, arg, want, kind string }{
		{"SELECT $1::int8", "9223372036854775807", `"9223372036854775807"`, "int8"},
		{"SELECT $1::int8", `"9007199254740993"`, `"9007199254740993"`, "int8"},
		{"SELECT $1::numeric", "12345678901234567890.123456789012345678901234567890", `"12345678901234567890.123456789012345678901234567890"`, "numeric"},
		{"SELECT $1::numeric", `"NaN"`, `"NaN"`, "numeric"},
		{"SELECT $1::int4", "-2147483648", "-2147483648", "int4"},
		{"SELECT $1::int2", "7", "7", "int2"},
		{"SELECT $1::float8", "1e300", "1e+300", "float8"},
		{"SELECT $1::float8", "0.1", "0.1", "float8"},
		{"SELECT $1::float8", `"Infinity"`, `"Infinity"`, "float8"},
		{"SELECT $1::float4", `"NaN"`, `"NaN"`, "float4"},
		{"SELECT $1::bool", "true", "true", "bool"},
		{"SELECT NOT $1::bool", "true", "false", "bool"},
		{"SELECT $1::text", "null", "null", "text"},
		{"SELECT $1::text", `"a\"b\\c\u00e9\nd<>"`, "\"a\\\"b\\\\cé\\nd\\u003c\\u003e\"", "text"},
		{"SELECT $1", "12.50", `"12.50"`, "text"},
		{"SELECT $1", `{"a": [1, {"b": 12345678901234567890}]}`, `{"a": [1, {"b": 12345678901234567890}]}`, "jsonb"},
		{"SELECT $1::json", `{"a":  1}`, `{"a": 1}`, "json"},
		{"SELECT $1::jsonb", `[1, "x", null]`, `[1, "x", null]`, "jsonb"},
		{"SELECT $1::jsonb", `"\"text\""`, `"text"`, "jsonb"},
		{"SELECT $1::int[]", `[1, null, 3]`, `"{1,NULL,3}"`, "_int4"},
		{"SELECT $1::int[]", `[[1,2],[3,4]]`, `"{{1,2},{3,4}}"`, "_int4"},
		{"SELECT $1::text[]", `["a b", "c\"d\\e", "NULL", null, ""]`, `"{\"a b\",\"c\\\"d\\\\e\",\"NULL\",NULL,\"\"}"`, "_text"},
		{"SELECT 3 = ANY($1)", `[1, 2, 3]`, "true", "bool"},
		{"SELECT $1::bytea", `"\\x00ff"`, `"\\x00ff"`, "bytea"},
		{"SELECT $1::timestamptz AT TIME ZONE 'UTC'", `"2026-01-02T03:04:05.678901Z"`, `"2026-01-02 03:04:05.678901"`, "timestamp"},
	} {
		r := w.ok(st(c.sql, c.arg))[0]
		if got := string(r.Rows[0]); got != "["+c.want+"]" || r.Columns[0].Type != c.kind {
			t.Errorf("%s with %s: %s %s, want %s %s", c.sql, c.arg, r.Columns[0].Type, got, c.kind, c.want)
		}
		if !json.Valid(r.Rows[0]) {
			t.Errorf("%s with %s: %s is no JSON", c.sql, c.arg, r.Rows[0])
		}
	}
}

func TestMismatchedArgumentsAreSQLErrors(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, c := range map[string]struct {
		statement wire.Statement
		state     string
	}{
		"not a number":        {st("SELECT $1::int", `"x"`), "22P02"},
		"out of range":        {st("SELECT $1::int4", "2147483648"), "22003"},
		"too few":             {st("SELECT $1::int + $2::int", "1"), "08P01"},
		"too many":            {st("SELECT $1::int", "1", "2"), "42P18"},
		"too many with array": {st("SELECT $1::int[]", "[1]", "[2]"), "42P18"},
		"array for a number":  {st("SELECT $1::int", "[1]"), "22P02"},
		"NUL in a string":     {st("SELECT $1::text", `"a\u0000b"`), "22021"},
		"several commands":    {st("SELECT 1; SELECT 2"), "42601"},
		"hidden COMMIT":       {st("SELECT 1; COMMIT"), "42601"},
		"no privilege":        {st("SELECT fence.raise('r', 9, NULL, 'x')"), "42501"},
	} {
		var failed *api.StatementError
		if err := w.fails(c.statement); !errors.As(err, &failed) || failed.SQLState != c.state || failed.Index != 0 {
			t.Errorf("%s: %v, want SQLSTATE %s", name, err, c.state)
		}
	}
}

func TestHiddenCommandsGainNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec("CREATE TABLE open (id int); GRANT ALL ON open TO fence_writer")
	w.exec("CREATE PROCEDURE ends() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'")
	for name, sql := range map[string]string{
		"COMMIT in DO":                 "DO 'BEGIN COMMIT; END'",
		"COMMIT in DO, dynamic":        "DO $$BEGIN EXECUTE 'COMMIT'; END$$",
		"COMMIT in a procedure":        "CALL ends()",
		"another role by set_config":   "SELECT set_config('role', 'fence_gateway', true)",
		"another role in DO":           "DO $$BEGIN EXECUTE 'SET ROLE fence_gateway'; END$$",
		"a session by set_config":      "SELECT set_config('session_authorization', 'fence_owner', false)",
		"triggers off":                 "SELECT set_config('session_replication_role', 'replica', true)",
		"an invented grant in DO":      "DO $$BEGIN PERFORM set_config('fence.token', '99.00000000000000000000000000000000', true); INSERT INTO items (id) VALUES (1); END$$",
		"no grant in DO":               "DO $$BEGIN PERFORM set_config('fence.token', '', true); INSERT INTO items (id) VALUES (1); END$$",
		"reset in DO":                  "DO $$BEGIN RESET ALL; PERFORM set_config('fence.token', '', true); INSERT INTO items (id) VALUES (1); END$$",
		"another resource's name":      "DO $$BEGIN PERFORM set_config('fence.resource', 'q', true); INSERT INTO items (id) VALUES (1); END$$",
		"unguarding":                   "SELECT fence.unprotect('items')",
		"the trigger disabled by name": "ALTER TABLE items DISABLE TRIGGER ALL",
	} {
		_, err := w.run.Run(t.Context(), w.grant, []wire.Statement{st("INSERT INTO open VALUES (1)"), st(sql), st("INSERT INTO items (id) VALUES (1)")})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var open int
	if err := w.admin.QueryRow(t.Context(), "SELECT count(*) FROM open").Scan(&open); err != nil || open != 0 || w.count() != 0 {
		t.Errorf("%d and %d rows committed, %v", open, w.count(), err)
	}
}

func TestOneRequestLeavesNothingToTheNext(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *fencedsql.Config) { c.MaxConns = 1 })
	w.ok(
		st("CREATE TEMP TABLE items (id int)"), // would shadow the real table
		st("SELECT set_config('fence.token', 'x', false), set_config('search_path', 'pg_catalog', false), set_config('statement_timeout', '0', false)"),
		st("SELECT pg_advisory_lock(4711)"),
		st("DECLARE c CURSOR WITH HOLD FOR SELECT 1"),
		st("LISTEN x"),
	)
	r := w.ok(
		st("SELECT to_regclass('pg_temp.items')::text, current_setting('search_path'), current_setting('statement_timeout')"),
		st("SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711), (SELECT count(*) FROM pg_cursors WHERE name = 'c'), (SELECT count(*) FROM pg_listening_channels())"),
	)
	if got := rows(r[0]); !strings.HasPrefix(got, `[[null,`) || strings.Contains(got, `"pg_catalog"`) || !strings.HasSuffix(got, `,"30s"]]`) {
		t.Errorf("settings: %s", got)
	}
	if got := rows(r[1]); got != `[["0","0","0"]]` {
		t.Errorf("locks, cursors, channels: %s", got)
	}
	// Without the transaction's grant there is none.
	w.ok(st("SELECT set_config('fence.token', '', true), set_config('fence.resource', '', true)"))
	if err := w.fails(st("SELECT set_config('fence.token', '', true), set_config('fence.resource', '', true)"), st("INSERT INTO items (id) VALUES (1)")); !errors.Is(err, fence.ErrNoGrant) {
		t.Errorf("write without a grant: %v", err)
	}
}
