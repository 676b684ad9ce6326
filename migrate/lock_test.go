package migrate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrate"
)

const (
	takeLock = `SET application_name = 'the operator''s psql'; SELECT pg_advisory_lock(x'66656e6365676174'::bigint)`
	freeLock = `SELECT pg_advisory_unlock_all()`
)

// A migration that waits for another one says once for which session, and waits until its context ends.
func TestAMigrationSaysForWhomItWaits(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	other, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.WithoutCancel(t.Context())) }()
	exec := func(sql string) {
		t.Helper()
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	want := migrate.Holder{PID: int(other.PgConn().PID()), Application: "the operator's psql"}
	said := make(chan migrate.Holder, 8)
	calls := map[string]func(ctx context.Context) error{
		"up": func(ctx context.Context) error {
			return migrate.Up(ctx, pg.URL, migrate.All, migrate.OnWait(func(by migrate.Holder) { said <- by }))
		},
		"down": func(ctx context.Context) error {
			return migrate.Down(ctx, pg.URL, migrate.All, false, migrate.OnWait(func(by migrate.Holder) { said <- by }))
		},
	}
	for name, call := range calls {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		begin := func() {
			t.Helper()
			exec(takeLock)
			go func() { done <- call(ctx) }()
			select {
			case by := <-said:
				if by != want {
					t.Errorf("%s waits for %+v, not %+v", name, by, want)
				}
			case err := <-done:
				t.Fatalf("%s did not wait: %v", name, err)
			}
		}
		begin()
		waitFor(t, pg, "it waits again", `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)`)
		exec(freeLock)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		begin()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
		waitFor(t, pg, "its session waits no longer", `SELECT NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database())`)
		exec(freeLock)
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(said); n > 0 {
		t.Errorf("%d more messages", n)
	}
}

func TestTheHolderReadsAsANoun(t *testing.T) {
	t.Parallel()
	for want, h := range map[string]migrate.Holder{
		"another session":               {},
		"the session with pid 7":        {PID: 7},
		"the session with pid 7 (psql)": {PID: 7, Application: "psql"},
	} {
		if got := h.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
