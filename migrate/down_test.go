package migrate_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

func is(t *testing.T, pg testenv.PG, what, sql string) {
	t.Helper()
	var yes bool
	if err := pg.Pool(t).QueryRow(t.Context(), sql).Scan(&yes); err != nil || !yes {
		t.Errorf("%s: %v, %v", what, yes, err)
	}
}

func down(t *testing.T, address string, which migrate.Set) {
	t.Helper()
	if err := migrate.Down(t.Context(), address, which, false); err != nil {
		t.Error(err)
	}
}

func TestDownLeavesASchemaOfTheUsersAlone(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"objects", "fence"} {
		pg := setup(t)
		exec1(t, pg, `CREATE SCHEMA `+schema)
		exec1(t, pg, `CREATE FUNCTION `+schema+`.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'`)
		exec1(t, pg, `CREATE TABLE `+schema+`.things (n integer DEFAULT `+schema+`.mine())`)
		if err := migrate.Up(t.Context(), pg.URL, migrate.All); err == nil {
			t.Fatal("migrated into a schema of the user's")
		}
		down(t, pg.URL, migrate.All)
		is(t, pg, schema, `SELECT to_regprocedure('`+schema+`.mine()') IS NOT NULL AND to_regclass('`+schema+`.things') IS NOT NULL
			AND to_regnamespace('fencegate') IS NULL AND (SELECT count(*) = 1 FROM pg_namespace WHERE nspname IN ('fence', 'objects'))`)
	}
}

func TestDownRefusesBeforeItRemovesAnything(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `SELECT objects.create_bucket('b', 0)`)
	exec1(t, pg, `CREATE VIEW public.mine AS SELECT * FROM fence.protected`)
	for range 2 {
		if err := migrate.Down(t.Context(), pg.URL, migrate.All, true); err == nil || !strings.Contains(err.Error(), "view mine") && !strings.Contains(err.Error(), "view public.mine") {
			t.Errorf("got %v", err)
		}
		is(t, pg, "the bucket stays", `SELECT count(*) = 1 FROM objects.buckets`)
		wantStatus(t, pg.URL, true, false)
	}
}

func TestDownCountsBucketsAndFences(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `SELECT objects.create_bucket('b', 0)`)
	var inUse *migrate.InUseError
	if err := migrate.Down(t.Context(), pg.URL, migrate.All, false); !errors.As(err, &inUse) || inUse.Buckets != 1 || inUse.Fences != 0 {
		t.Errorf("got %v", err)
	}
	exec1(t, pg, `SELECT fence.raise('r', 1, NULL, '')`)
	err := migrate.Down(t.Context(), pg.URL, migrate.All, false)
	if !errors.As(err, &inUse) || inUse.Buckets != 1 || inUse.Fences != 1 || !strings.Contains(err.Error(), "1 fence(s) and 1 bucket(s)") {
		t.Errorf("got %v", err)
	}
	wantStatus(t, pg.URL, true, false)
}

func TestTheObjectsDoNotTakeWhatUsesTheirFunctions(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `CREATE SCHEMA mine; CREATE VIEW mine.waiting AS SELECT fence.staged('00000000-0000-0000-0000-000000000000')`)
	if err := migrate.Down(t.Context(), pg.URL, migrate.Objects, true); err == nil || !strings.Contains(err.Error(), "view mine.waiting") {
		t.Errorf("got %v", err)
	}
	is(t, pg, "the view", `SELECT to_regclass('mine.waiting') IS NOT NULL`)
	wantStatus(t, pg.URL, true, false)
	exec1(t, pg, `DROP VIEW mine.waiting`)
	down(t, pg.URL, migrate.Objects)
	is(t, pg, "the fence alone", `SELECT to_regnamespace('objects') IS NULL AND to_regprocedure('fence.staged(uuid)') IS NULL AND to_regprocedure('fence.guard()') IS NOT NULL`)
}

func TestALoginWithAQuotedNameCanRemove(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	login := `Own "er` + pg.Database
	quoted := pgx.Identifier{login}.Sanitize()
	exec1(t, pg, `CREATE ROLE `+quoted+` SUPERUSER`)
	defer exec1(t, pg, `DROP ROLE `+quoted)
	address := pg.URL + "?"
	if strings.Contains(pg.URL, "?") {
		address = pg.URL + "&"
	}
	down(t, address+`role=Own%20%22er`+pg.Database, migrate.All)
	is(t, pg, "all is gone", `SELECT to_regnamespace('fence') IS NULL`)
}

func TestDownWaitsInShortTurnsAndSaysForWhat(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `CREATE TABLE work ()`)
	exec1(t, pg, `SELECT fence.protect('work', resource => 'r')`)
	reader := blocker(t, pg, `SELECT * FROM work`)
	var locked *migrate.LockedError
	if err := migrate.Down(t.Context(), pg.URL, migrate.All, true); !errors.As(err, &locked) || !strings.Contains(err.Error(), "work (process ") {
		t.Errorf("got %v", err)
	}
	wantStatus(t, pg.URL, true, false)
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migrate.Down(t.Context(), pg.URL, migrate.All, true); err != nil {
		t.Error(err)
	}
}

func TestDownGoesByTheNotesWhereTheRecordIsLost(t *testing.T) {
	t.Parallel()
	for what, lost := range map[string]string{"all": `DROP SCHEMA fencegate CASCADE`, "of the objects": `DROP TABLE fencegate.objects_state`} {
		pg := setup(t)
		up(t, pg.URL)
		exec1(t, pg, lost)
		var needed *migrate.NeededError
		if err := migrate.Down(t.Context(), pg.URL, migrate.Fence, false); !errors.As(err, &needed) {
			t.Errorf("%s: the fence alone: %v", what, err)
		}
		down(t, pg.URL, migrate.All)
		is(t, pg, what, `SELECT count(*) = 0 FROM pg_namespace WHERE nspname IN ('fence', 'objects', 'fencegate')`)
	}
}
