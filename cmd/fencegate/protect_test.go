package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

// beginOn begins a transaction that holds a table in a mode.
func beginOn(t *testing.T, url, lock string) pgx.Tx {
	t.Helper()
	tx, err := testenv.PoolOf(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	if _, err := tx.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestAChangeOfGuardsGivesUpWhereOthersHoldTheTable(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	where := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}
	runSQL(t, pg.URL, `CREATE TABLE orders (id bigint)`, `SELECT fence.protect('orders', per_row => $$'orders/' || id$$)`)
	commands := []string{"fence refresh orders", "fence enforce orders", "protect orders --resource orders", "unprotect orders"}
	writer := beginOn(t, pg.URL, `LOCK TABLE orders IN ROW EXCLUSIVE MODE`)
	for _, command := range commands {
		args := append(strings.Fields(command), "--lock-timeout", "10ms")
		code, _, stderr := cli(t, where, args...)
		if code != exitFailed || !strings.Contains(stderr, "transactions hold the table") || strings.Count(stderr, "was protected with") > 1 {
			t.Errorf("%s beside a writer: %d, %q", command, code, stderr)
		}
	}
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := cli(t, where, "fence", "refresh", "orders"); code != exitOK || stdout+stderr != "orders: protected\n" {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	for _, command := range commands {
		if code, _, stderr := cli(t, where, slices.Concat(strings.Fields(command), []string{"--lock-timeout", "0s"})...); code != exitUsage {
			t.Errorf("%s without a wait: %d, %q", command, code, stderr)
		}
	}
}

// While a command waits for a transaction, others that want the table go on between its tries.
func TestAChangeOfGuardsGivesItsLockBackBetweenTries(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	runSQL(t, pg.URL, `CREATE TABLE orders (id bigint)`, `SELECT fence.protect('orders', resource => 'orders')`)
	reader := beginOn(t, pg.URL, `SELECT count(*) FROM orders`)
	done := make(chan int, 1)
	go func() {
		code, _, _ := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}, "unprotect", "orders")
		done <- code
	}()
	pool := testenv.PoolOf(t, pg.URL)
	testenv.Eventually(t, "the command waits", func() (waits bool) {
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'orders'::regclass AND NOT granted)`).Scan(&waits)
		return err == nil && waits
	})
	runSQL(t, pg.URL, `SELECT count(*) FROM orders`)
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitOK {
		t.Errorf("it ended with %d", code)
	}
}

func TestTablesAndSchemasAreProtectedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}
	runSQL(t, pg.URL, `CREATE TABLE orders (id bigint, token bigint)`, `CREATE SCHEMA app`, `CREATE TABLE app.a (id bigint)`)
	refused := func(state string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), pg.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		_, err = conn.Exec(t.Context(), `INSERT INTO orders VALUES (1)`)
		if (err == nil) != (state == "") || err != nil && !strings.Contains(err.Error(), state) {
			t.Errorf("an unfenced write: %v; want %q", err, state)
		}
	}
	for _, step := range []struct {
		args  []string
		state string
	}{
		{[]string{"protect", "orders", "--under", "orders/"}, "ZF002"},
		{[]string{"unprotect", "orders"}, ""},
		{[]string{"protect", "orders", "--resource", "all"}, "ZF002"},
		{[]string{"protect", "orders", "--per-row", "'orders/' || id", "--stamp", "token"}, "ZF002"},
		{[]string{"protect", "orders", "--under", "orders/", "--report"}, ""},
		{[]string{"fence", "enforce", "orders"}, "ZF002"},
		{[]string{"unprotect", "orders"}, ""},
		{[]string{"protect", "app", "--schema", "--under", "app/"}, ""},
	} {
		ok(t, vars, step.args...)
		refused(step.state)
	}
	ok(t, vars, "protect", "orders", "--under", "orders/")
	if _, _, stderr := cli(t, vars, "protect", "orders", "--under", "orders/"); stderr != "" {
		t.Errorf("the same rule again: %q", stderr)
	}
	if _, _, stderr := cli(t, vars, "protect", "orders", "--resource", "all"); !strings.Contains(stderr, "orders was protected with under => 'orders/';") {
		t.Errorf("another rule does not name the one before: %q", stderr)
	}
	ok(t, vars, "unprotect", "orders")
	ok(t, vars, "fence", "uncovered")
	runSQL(t, pg.URL, `CREATE TABLE app.b (id bigint)`)
	code, stdout, _ := cli(t, vars, "fence", "uncovered")
	if code != exitFailed || !strings.Contains(stdout, "app.b: ") {
		t.Errorf("a table without a guard in a protected schema: %d %q", code, stdout)
	}
	ok(t, vars, "fence", "events", "install")
	ok(t, vars, "protect", "app", "--schema", "--under", "app/")
	runSQL(t, pg.URL, `CREATE TABLE app.c (id bigint)`)
	if out := ok(t, vars, "fence", "uncovered", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("with event triggers: %s", out)
	}
	ok(t, vars, "fence", "events", "uninstall")
	ok(t, vars, "unprotect", "app", "--schema")
}
