package migrate_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// waitFor polls until the query, asked on a connection of its own, says true.
func waitFor(t *testing.T, pg testenv.PG, what, sql string) {
	t.Helper()
	pool := pg.Pool(t)
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		var yes bool
		if err := pool.QueryRow(t.Context(), sql).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		if yes {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// blocker begins a transaction that stands in the way of others.
func blocker(t *testing.T, pg testenv.PG, sql string) pgx.Tx {
	t.Helper()
	tx, err := pg.Pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	return tx
}

const (
	blockedOn = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%s')`
	endThem   = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
)

func TestAMigrationThatDiedInItsMiddleIsMadeGood(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	inTheWay := blocker(t, pg, `CREATE SCHEMA fence`)
	done := make(chan error, 1)
	go func() { done <- migrate.Up(t.Context(), pg.URL) }()
	waitFor(t, pg, "the first migration is under way", fmt.Sprintf(blockedOn, "-- Roles, the schema%"))
	exec1(t, pg, endThem)
	if err := <-done; err == nil {
		t.Fatal("migrated although its connection died")
	}
	if err := inTheWay.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, pg.URL, false, true)
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)
}

func TestAMigrationThatDiedBehindItsCommitIsMadeGood(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	first := blocker(t, pg, `CREATE SCHEMA fence`)
	done := make(chan error, 1)
	go func() { done <- migrate.Up(t.Context(), pg.URL) }()
	waitFor(t, pg, "the first migration is under way", fmt.Sprintf(blockedOn, "-- Roles, the schema%"))
	second := blocker(t, pg, `LOCK TABLE fencegate.migrations IN SHARE MODE`)
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, pg, "its version is about to be recorded", fmt.Sprintf(blockedOn, "%migrations%"))
	exec1(t, pg, endThem)
	if err := <-done; err == nil {
		t.Fatal("migrated although its connection died")
	}
	if err := second.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, pg.URL, false, true)
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)
}

// Every step leaves a note, upwards and downwards, and either side of it is made good.
func TestEveryStepCanBeInterrupted(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	s, err := migrate.Status(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, recorded := range []uint{s.Latest, s.Latest - 1, 1} {
		exec1(t, pg, fmt.Sprintf(`UPDATE fencegate.migrations SET version = %d, dirty = true`, recorded))
		up(t, pg.URL)
		wantStatus(t, pg.URL, true, false)
	}
	exec1(t, pg, `UPDATE fencegate.migrations SET dirty = true`)
	if err := migrate.Down(t.Context(), pg.URL, false); err != nil {
		t.Error(err)
	}
	wantStatus(t, pg.URL, false, false)
}

func TestTheStateReadsAsASentence(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]migrate.State{
		"not migrated (this program has version 12)": {Latest: 12},
		"version 4 of 12: migrate up":                {Version: 4, Latest: 12},
		"version 12, up to date":                     {Version: 12, Latest: 12},
		"a migration to or from version 4 was interrupted: migrate up again (this program has version 12)": {Version: 4, Latest: 12, Dirty: true},
		"version 13, newer than this program's 12: use a newer program":                                    {Version: 13, Latest: 12},
	} {
		if got := fmt.Sprint(s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if s.UpToDate() != (want == "version 12, up to date") || s.Newer() != (s.Version == 13) {
			t.Errorf("%s: up to date %v, newer %v", want, s.UpToDate(), s.Newer())
		}
	}
}

func TestCausesCanBeLookedFor(t *testing.T) {
	t.Parallel()
	calls := map[string]func(string) error{
		"up":     func(url string) error { return migrate.Up(t.Context(), url) },
		"down":   func(url string) error { return migrate.Down(t.Context(), url, false) },
		"status": func(url string) error { _, err := migrate.Status(t.Context(), url); return err },
	}
	for name, call := range calls {
		var away *pgconn.ConnectError
		if err := call("postgres://nobody@127.0.0.1:1/none?connect_timeout=2"); !errors.As(err, &away) {
			t.Errorf("%s, away: %v", name, err)
		}
		var malformed *pgconn.ParseConfigError
		if err := call("postgres://%zz"); !errors.As(err, &malformed) {
			t.Errorf("%s, malformed: %v", name, err)
		}
	}
}
