package migrate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// waitFor polls until the query, on its own connection, returns true.
func waitFor(t *testing.T, pg testenv.PG, what, sql string) {
	t.Helper()
	pool := pg.Pool(t)
	deadline := time.After(time.Minute)
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
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// blocker begins a transaction that blocks others.
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
	go func() { done <- migrate.Up(t.Context(), pg.URL, migrate.All) }()
	waitFor(t, pg, "the first migration is under way", fmt.Sprintf(blockedOn, "%-- Tables and roles%"))
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
	go func() { done <- migrate.Up(t.Context(), pg.URL, migrate.All) }()
	waitFor(t, pg, "the first migration is under way", fmt.Sprintf(blockedOn, "%-- Tables and roles%"))
	second := blocker(t, pg, `LOCK TABLE fencegate.fence_state IN SHARE MODE`)
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, pg, "its version is about to be recorded", fmt.Sprintf(blockedOn, "%fence_state%"))
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

// Every step leaves a note, upwards and downwards. An interruption before or after the note is recovered from.
func TestEveryStepCanBeInterrupted(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	k := later(t, 2)
	if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"fence", "objects"} {
		for recorded := stateOf(t, set) + 2; recorded > 0; recorded-- {
			exec1(t, pg, fmt.Sprintf(`UPDATE fencegate.%s_state SET version = %d, dirty = true`, set, recorded))
			if s, err := k.Look(t.Context(), pg.URL, migrate.All); err != nil || s.UpToDate() || !strings.Contains(s.String(), "interrupted") {
				t.Errorf("%s, %d: %v, %v", set, recorded, s, err)
			}
			if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
				t.Errorf("%s, %d: %v", set, recorded, err)
			}
			if s, err := k.Look(t.Context(), pg.URL, migrate.All); err != nil || !s.UpToDate() {
				t.Errorf("%s, %d: %v, %v", set, recorded, s, err)
			}
		}
		exec1(t, pg, fmt.Sprintf(`UPDATE fencegate.%s_state SET dirty = true`, set))
	}
	if err := k.Down(t.Context(), pg.URL, migrate.All, false); err != nil {
		t.Error(err)
	}
	wantStatus(t, pg.URL, false, false)
}

func TestTheStatusReadsAsASentence(t *testing.T) {
	t.Parallel()
	set := migrate.SetStatus{Set: "fence", Version: 4, Latest: 4, Revision: 7, LatestRevision: 7}
	with := func(change func(*migrate.SetStatus)) migrate.Status {
		s := set
		change(&s)
		return migrate.Status{Sets: []migrate.SetStatus{s}}
	}
	for want, s := range map[string]migrate.Status{
		"fence state 4, code 7: up to date":                                                                    with(func(*migrate.SetStatus) {}),
		"no fence (this program has state 4, code 7): not migrated":                                            with(func(s *migrate.SetStatus) { s.Version, s.Revision = 0, 0 }),
		"fence state 3 of 4, code pending: migrate up":                                                         with(func(s *migrate.SetStatus) { s.Version, s.Revision = 3, 0 }),
		"fence state 4, code pending: migrate up":                                                              with(func(s *migrate.SetStatus) { s.Revision = 0 }),
		"fence state 4, code 6 of 7: migrate up":                                                               with(func(s *migrate.SetStatus) { s.Revision = 6 }),
		"fence state 4, code 7 with another text: migrate up":                                                  with(func(s *migrate.SetStatus) { s.Changed = true }),
		"fence state 4, code 7: a migration was interrupted: migrate up again":                                 with(func(s *migrate.SetStatus) { s.Dirty = true }),
		"fence state 5 of 4, code 7: newer than this program: use a newer program":                             with(func(s *migrate.SetStatus) { s.Version = 5 }),
		"fence state 4, code 8 of 7: newer than this program: use a newer program":                             with(func(s *migrate.SetStatus) { s.Revision = 8 }),
		"fence state 4, code 7: somebody dropped fence.guard(): migrate up again":                              {Sets: []migrate.SetStatus{set}, Missing: []string{"fence.guard()"}},
		"fence state 4, code 7: it needs a program of generation 9, and this one is of 1: use a newer program": {Sets: []migrate.SetStatus{set}, MinProgram: 9},
	} {
		if got := fmt.Sprint(s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if s.UpToDate() && !strings.Contains(want, "up to date") && s.MinProgram == 0 || s.Newer() != strings.Contains(want, "newer than") {
			t.Errorf("%s: up to date %v, newer %v", want, s.UpToDate(), s.Newer())
		}
		if s.Serves() != (strings.Contains(want, "up to date") || s.Newer()) {
			t.Errorf("%s: serves %v", want, s.Serves())
		}
	}
}

func TestCausesCanBeLookedFor(t *testing.T) {
	t.Parallel()
	calls := map[string]func(string) error{
		"up":     func(url string) error { return migrate.Up(t.Context(), url, migrate.All) },
		"down":   func(url string) error { return migrate.Down(t.Context(), url, migrate.All, false) },
		"status": func(url string) error { _, err := migrate.Look(t.Context(), url, migrate.All); return err },
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

// A set that is newer does not compensate for one that is behind.
func TestEachSetMustServeByItself(t *testing.T) {
	t.Parallel()
	fence := migrate.SetStatus{Set: "fence", Version: 2, Latest: 1, Revision: 3, LatestRevision: 2}
	for objects, want := range map[migrate.SetStatus]bool{
		{Set: "objects", Version: 1, Latest: 1, Revision: 2, LatestRevision: 2}: true,
		{Set: "objects", Version: 1, Latest: 1, Revision: 3, LatestRevision: 2}: true,
		{Set: "objects", Version: 1, Latest: 1, Revision: 0, LatestRevision: 2}: false,
		{Set: "objects", Latest: 1, LatestRevision: 2}:                          false,
	} {
		if s := (migrate.Status{Sets: []migrate.SetStatus{fence, objects}}); s.Serves() != want {
			t.Errorf("%s: serves %v", s, s.Serves())
		}
	}
}
