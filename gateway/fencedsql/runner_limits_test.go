//go:build unix

package fencedsql_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

func TestLimitsHold(t *testing.T) {
	t.Parallel()
	// Also for the first rows of a large result.
	w := setup(t, func(c *fencedsql.Config) { c.MaxResultBytes, c.StatementTimeout = 1000, 7*time.Second })
	insert := st("INSERT INTO items (id) VALUES (1)")
	var tooLarge *api.TooLargeError
	if err := w.fails(insert, st("SELECT repeat('x', 100), generate_series(1, 1000000000)")); !errors.As(err, &tooLarge) || tooLarge.Limit != 1000 {
		t.Errorf("large result: %v", err)
	}
	var failed *api.StatementError
	if err := w.fails(insert, st("SELECT pg_sleep(60)")); !errors.As(err, &failed) || failed.SQLState != "57014" || failed.Index != 1 {
		t.Errorf("slow statement: %v", err)
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
}

func TestOneHugeRowIsNotReadIntoMemory(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *fencedsql.Config) { c.MaxResultBytes = 1000 })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var tooLarge *api.TooLargeError
	err := w.fails(st("INSERT INTO items (id) VALUES (1)"), st("SELECT repeat('x', 200 * 1024 * 1024)"))
	runtime.ReadMemStats(&after)
	if !errors.As(err, &tooLarge) || tooLarge.Limit != 1000 {
		t.Errorf("huge row: %v", err)
	}
	if read := after.TotalAlloc - before.TotalAlloc; read > 100<<20 {
		t.Errorf("%d bytes were allocated for a row that is refused", read)
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
	w.ok(st("SELECT 1")) // the next request gets a working connection
}

func TestAnswerThatIsNoJSONCommitsNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	insert := st("INSERT INTO items (id) VALUES (1)")
	for _, sql := range []string{"SELECT to_json(chr(233))", "SELECT chr(233)"} {
		var failed *api.StatementError
		err := w.fails(insert, st("SELECT set_config('client_encoding', 'LATIN1', true)"), st(sql))
		if !errors.As(err, &failed) || failed.Index != 2 || failed.SQLState != "22021" {
			t.Errorf("%s: %v, want 22021 of statement 2", sql, err)
		}
		// Deeper than Go's encoder allows.
		err = w.fails(insert, st("SELECT (repeat('[', 11000) || repeat(']', 11000))::json"))
		if !errors.As(err, &failed) || failed.Index != 1 {
			t.Errorf("deep JSON: %v", err)
		}
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
}

func TestStatementsMayNotLiftTheRequestsLimit(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *fencedsql.Config) { c.RequestTimeout = 8 * time.Second }) // all but the last statement must finish within it
	var failed *api.StatementError
	err := w.fails(st("INSERT INTO items (id) VALUES (1)"), st("SET LOCAL statement_timeout = 0"), st("SELECT pg_sleep(60)"))
	if !errors.As(err, &failed) || failed.SQLState != "57014" || failed.Index != 2 {
		t.Errorf("slow request: %v", err)
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
}

func TestClientThatLeavesEndsItsStatement(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ctx, leave := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := w.run.Run(ctx, w.grant, []wire.Statement{st("INSERT INTO items (id) VALUES (1)"), st("SELECT pg_sleep(60)")})
		failed <- err
	}()
	const sleeping = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%' AND state = 'active'"
	w.until("SELECT count(*) = 1 " + sleeping)
	leave()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	w.until("SELECT count(*) = 0 " + sleeping)
	if n := w.count(); n != 0 {
		t.Errorf("%d rows committed", n)
	}
}

func TestUnreachableDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	run, err := fencedsql.New(fencedsql.Config{URL: "postgres://u:hunter2@127.0.0.1:1/d"})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	_, err = run.Run(t.Context(), fence.Grant{Resource: "r", Token: 1}, []wire.Statement{st("SELECT 1")})
	var away *leasing.UnavailableError
	if !errors.As(err, &away) || away.Part != "postgresql" || errors.Is(err, fence.ErrUnknown) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestReadinessWantsAWriterAndNoMore(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	admin := pg.Pool(t)
	makers, owner := pg.As(t, "fence_writer"), pg.As(t, "fence_writer")
	for url, sql := range map[string]string{
		makers: "ALTER ROLE %s CREATEROLE",
		owner:  "CREATE TABLE guarded (id int); SELECT fence.protect('guarded', resource => 'r'); ALTER TABLE guarded OWNER TO %s",
	} {
		login, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Exec(t.Context(), fmt.Sprintf(sql, login.User)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		url  string
		says string // "": ready
	}{
		"writer":            {pg.WriterURL, ""},
		"no role":           {pg.OtherURL, "not in fence_writer"},
		"superuser":         {pg.URL, "may do more"},
		"gateway as well":   {pg.As(t, "fence_writer", "fence_gateway"), "may do more"},
		"owner as well":     {pg.As(t, "fence_writer", "fence_owner"), "may do more"},
		"may protect":       {pg.As(t, "fence_writer", "fence_protector"), "may do more"},
		"gateway, no write": {pg.GatewayURL, "not in fence_writer"},
		"may signal":        {pg.As(t, "fence_writer", "pg_signal_backend"), "pg_signal_backend"},
		"may write files":   {pg.As(t, "fence_writer", "pg_write_server_files"), "pg_write_server_files"},
		"may run programs":  {pg.As(t, "fence_writer", "pg_execute_server_program"), "pg_execute_server_program"},
		"may write all":     {pg.As(t, "fence_writer", "pg_write_all_data"), "pg_write_all_data"},
		"may make roles":    {makers, "may do more"},
		"owns a guard":      {owner, "guarded"},
	} {
		run, err := fencedsql.New(fencedsql.Config{URL: c.url})
		if err != nil {
			t.Fatal(err)
		}
		err = run.Check(t.Context())
		run.Close()
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// In memory a row takes more than its JSON; an empty one takes many times as much.
func TestEmptyRowsCountTowardsTheLimit(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *fencedsql.Config) { c.MaxResultBytes = 1000 })
	var tooLarge *api.TooLargeError
	if err := w.fails(st("SELECT FROM generate_series(1, 100)")); !errors.As(err, &tooLarge) || tooLarge.Limit != 1000 {
		t.Errorf("100 empty rows: %v", err)
	}
	w.ok(st("SELECT FROM generate_series(1, 10)"))
}
