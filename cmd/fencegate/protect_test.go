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
