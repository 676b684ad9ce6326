package migrate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// impatient returns the database under a login whose sessions have short timeouts, in milliseconds.
func impatient(pg testenv.PG, timeout int) testenv.PG {
	separator := "?"
	if strings.Contains(pg.URL, "?") {
		separator = "&"
	}
	pg.URL += separator + "options=" + strings.NewReplacer(" ", "%20", "=", "%3D").Replace(
		fmt.Sprintf("-c lock_timeout=%[1]d -c statement_timeout=%[1]d -c idle_session_timeout=%[1]d -c idle_in_transaction_session_timeout=%[1]d", timeout))
	return pg
}

// A migration waits until it is interrupted, and its steps take as long as they need, whatever the login's timeouts are.
func TestTheLoginsTimeoutsDoNotEndAMigration(t *testing.T) {
	t.Parallel()
	up := func(ctx context.Context, slow migrate.Kit, pg testenv.PG) error {
		return slow.Up(ctx, pg.URL, migrate.All)
	}
	calls := map[string]func(context.Context, migrate.Kit, testenv.PG) error{
		"up": up,
		"up and down": func(ctx context.Context, slow migrate.Kit, pg testenv.PG) error {
			if err := up(ctx, slow, pg); err != nil {
				return err
			}
			return slow.Down(ctx, pg.URL, migrate.All, false)
		},
		"the plain SQL": func(_ context.Context, slow migrate.Kit, pg testenv.PG) error {
			return plainOf(t, slow, pg, migrate.All, 0)
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := outlasts(t, call); err != nil {
				t.Error(err)
			}
		})
	}
}

// outlasts runs a migration that waits for its lock, and has steps that take, longer than the login's timeouts.
func outlasts(t *testing.T, call func(context.Context, migrate.Kit, testenv.PG) error) error {
	t.Helper()
	const timeout = 3000 // ms; a session lifts it sooner, also on a busy machine
	long := float64(timeout+400) / 1000
	slow := kitOf(t, func(files fstest.MapFS) {
		for _, set := range []string{"fence", "objects"} {
			step(t, files, set, stateOf(t, set)+1, fmt.Sprintf("DO 'BEGIN PERFORM pg_catalog.pg_sleep(%.1f); END';", long))
		}
	})
	pg := setup(t)
	other, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), takeLock); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- call(t.Context(), slow, impatient(pg, timeout)) }()
	pool := pg.Pool(t)
	testenv.Eventually(t, "it has waited longer than the timeouts, or ended", func() (waited bool) {
		if err := pool.QueryRow(t.Context(), waitsLong, long).Scan(&waited); err != nil {
			t.Fatal(err)
		}
		return waited || len(done) > 0
	})
	if len(done) > 0 {
		return fmt.Errorf("it did not wait: %w", <-done)
	}
	if _, err := other.Exec(t.Context(), freeLock); err != nil {
		t.Fatal(err)
	}
	return <-done
}

// waitsLong tells whether a session has waited for the lock of the migrations for longer than a number of seconds.
const waitsLong = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE a.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted AND l.waitstart < clock_timestamp() - $1::float8 * interval '1 s')`
