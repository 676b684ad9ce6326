package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/migrate"
)

func TestAnInterruptEndsAMigrationThatWaitsForOthers(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	inTheWay := blocker(t, pg, `CREATE SCHEMA fence`)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	done := make(chan error, 1)
	go func() { done <- migrate.Up(ctx, pg.URL, migrate.All) }()
	waitFor(t, pg, "the first migration is under way", fmt.Sprintf(blockedOn, "%-- Tables and roles%"))
	interrupt()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on waiting for the transaction in its way")
		exec1(t, pg, endThem)
		<-done
	}
	if err := inTheWay.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, pg.URL, false, false)
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)
}

// The notes of the migrations' own transactions tell what is applied. A separate record that was lost, or set back by a
// process that had lost its lock, is corrected.
func TestTheRecordOfTheVersionFollowsWhatIsApplied(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	k := later(t, 2)
	for what, sql := range map[string]string{
		"set back":             `UPDATE fencegate.fence_state SET version = 2; UPDATE fencegate.objects_state SET version = 1`,
		"set forward":          `UPDATE fencegate.fence_state SET version = 9`,
		"empty":                `DELETE FROM fencegate.fence_state; DELETE FROM fencegate.objects_state; DELETE FROM fencegate.code`,
		"its table is missing": `DROP TABLE fencegate.fence_state, fencegate.objects_state, fencegate.code`, // a dump of the schemas fence and objects alone
		"its schema, too":      `DROP SCHEMA fencegate CASCADE`,
	} {
		if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
			t.Fatal(err)
		}
		exec1(t, pg, sql)
		if s, err := k.Look(t.Context(), pg.URL, migrate.All); err != nil || s.UpToDate() == strings.HasPrefix(what, "set ") {
			t.Errorf("%s: %v, %v", what, s, err)
		}
		if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if s, err := k.Look(t.Context(), pg.OtherURL, migrate.All); err != nil || !s.UpToDate() {
			t.Errorf("%s: %v, %v", what, s, err)
		}
	}
}

// A silently recreated schema would accept every token that the lost fences refused.
func TestASchemaThatSomebodyDroppedIsNotMadeAnewBeforeTheRecordIsCleared(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	for _, dropped := range []string{"fence, objects", "objects", "fence"} {
		exec1(t, pg, `DROP SCHEMA `+dropped+` CASCADE`)
		if s, err := migrate.Look(t.Context(), pg.URL, migrate.All); err != nil || s.UpToDate() || s.Serves() || !strings.Contains(s.String(), "was dropped") {
			t.Errorf("%s: status %v, %v", dropped, s, err)
		}
		var gone *migrate.GoneError
		if err := migrate.Up(t.Context(), pg.URL, migrate.All); !errors.As(err, &gone) {
			t.Errorf("%s: migrated up: %v", dropped, err)
		}
		if err := migrate.Down(t.Context(), pg.URL, migrate.All, true); err != nil {
			t.Errorf("%s: migrate down: %v", dropped, err)
		}
		up(t, pg.URL)
		wantStatus(t, pg.URL, true, false)
	}
	exec1(t, pg, `SELECT fence.raise('r', 1, NULL, '')`)
}

func TestAConnectionThatBreaksIsSaidWithoutTheMigrationsText(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	inTheWay := blocker(t, pg, `CREATE SCHEMA fence`)
	done := make(chan error, 1)
	go func() { done <- migrate.Up(t.Context(), pg.URL, migrate.All) }()
	waitFor(t, pg, "the first migration is under way", fmt.Sprintf(blockedOn, "%-- Tables and roles%"))
	exec1(t, pg, endThem)
	if err := <-done; err == nil || strings.Contains(err.Error(), "CREATE") || !strings.Contains(err.Error(), "57P01") || !strings.Contains(err.Error(), "Migrate again") {
		t.Errorf("got %.300v", err)
	}
	if err := inTheWay.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// PostgreSQL's error can be found in the returned one, for example for an exit code.
func TestARightThatIsMissingIsFoundInTheError(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	for what, err := range map[string]error{
		"up":   migrate.Up(t.Context(), pg.OtherURL, migrate.All),
		"down": migrate.Down(t.Context(), pg.OtherURL, migrate.All, true),
	} {
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "42501" || strings.Contains(err.Error(), "TRUNCATE") {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantStatus(t, pg.URL, true, false)
}
