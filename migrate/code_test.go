package migrate_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// revise gives a set's code the next revision.
func revise(t *testing.T, files fstest.MapFS, set string) {
	t.Helper()
	edit(t, files, set+"/code/manifest.txt", fmt.Sprintf("\nrevision %d\n", revisionOf(t, set)), fmt.Sprintf("\nrevision %d\n", revisionOf(t, set)+1))
}

// newer is a newer program's sets: the next code revision of both, each with one function more.
func newer(t *testing.T, more func(fstest.MapFS)) migrate.Kit {
	t.Helper()
	return kitOf(t, func(files fstest.MapFS) {
		for set, file := range map[string]string{"fence": "names.sql", "objects": "catalog.sql"} {
			revise(t, files, set)
			extend(files, set+"/code/"+file, fmt.Sprintf(`CREATE OR REPLACE FUNCTION %[1]s.added_later() RETURNS integer LANGUAGE sql AS 'SELECT 2';
REVOKE ALL ON FUNCTION %[1]s.added_later() FROM PUBLIC, fence_writer, fence_gateway;
`, set))
		}
		if more != nil {
			more(files)
		}
	})
}

func has(t *testing.T, pg testenv.PG, function string) bool {
	t.Helper()
	var yes bool
	if err := pg.Pool(t).QueryRow(t.Context(), `SELECT to_regprocedure($1) IS NOT NULL`, function).Scan(&yes); err != nil {
		t.Fatal(err)
	}
	return yes
}

func wantSaid(t *testing.T, k migrate.Kit, pg testenv.PG, upToDate bool, words string) {
	t.Helper()
	s, err := k.Look(t.Context(), pg.OtherURL, migrate.All)
	if err != nil || s.UpToDate() != upToDate || !strings.Contains(s.String(), words) {
		t.Errorf("status %q, up to date %v, %v; want %v and %q", s, s.UpToDate(), err, upToDate, words)
	}
}

// The state is applied, and the code is not, as after a crash in between.
func TestCodeThatFailsIsNotAppliedInPartAndStaysPending(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	broken := newer(t, func(files fstest.MapFS) {
		extend(files, "objects/code/sweep.sql", "SELECT nothing;\n")
	})
	err := broken.Up(t.Context(), pg.URL, migrate.All)
	if err == nil || !strings.Contains(err.Error(), "objects/code/sweep.sql") || !strings.Contains(err.Error(), "42703") {
		t.Errorf("got %v; want the file and PostgreSQL's reason", err)
	}
	if has(t, pg, "fence.guard()") {
		t.Error("a part of the code is there")
	}
	fixed := newer(t, nil)
	wantSaid(t, fixed, pg, false, fmt.Sprintf("fence state %d, code pending; objects state %d, code pending", stateOf(t, "fence"), stateOf(t, "objects")))
	for range 2 {
		if err := fixed.Up(t.Context(), pg.URL, migrate.All); err != nil {
			t.Fatal(err)
		}
		wantSaid(t, fixed, pg, true, "up to date")
	}
}

func TestNewerCodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	for what, lost := range map[string]string{"": `SELECT`, ", its record lost": `DELETE FROM fencegate.code`} {
		pg := setup(t)
		k := newer(t, nil)
		if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
			t.Fatal(err)
		}
		exec1(t, pg, lost)
		for _, err := range []error{migrate.Up(t.Context(), pg.URL, migrate.All), migrate.Down(t.Context(), pg.URL, migrate.All, true)} {
			var e *migrate.NewerError
			if !errors.As(err, &e) || !strings.Contains(err.Error(), "use a newer program") {
				t.Errorf("newer code%s: %v", what, err)
			}
		}
		if !has(t, pg, "fence.added_later()") || !has(t, pg, "objects.added_later()") {
			t.Errorf("newer code%s was overwritten", what)
		}
		if s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.All); err != nil || !s.Newer() || !s.Serves() {
			t.Errorf("newer code%s: %v, %v; an older gateway goes on", what, s, err)
		}
	}
}

func TestAnOlderProgramGoesOnUnlessTheDatabaseSaysOtherwise(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	k := newer(t, func(files fstest.MapFS) {
		edit(t, files, "objects/code/manifest.txt", "\nmin_program 1\n", "\nmin_program 2\n")
	})
	if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.All)
	if err != nil || s.Serves() || s.MinProgram != 2 || !strings.Contains(s.String(), "needs a program of generation 2") {
		t.Errorf("%v, %v, serves %v", s, err, s.Serves())
	}
	if s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.Fence); err != nil || !s.Serves() {
		t.Errorf("the fence alone: %v, %v; want that it serves", s, err)
	}
}

// An old function that a newer one replaced would accept what the new one refuses.
func TestAFunctionThatNoSetHasIsNamed(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `CREATE TABLE work (id bigint, token bigint)`)
	exec1(t, pg, `SELECT fence.protect('work', per_row => $$'work/' || id$$, stamp => 'token')`) // makes functions
	outside := func() []string {
		s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.All)
		if err != nil {
			t.Fatal(err)
		}
		return s.Outside
	}
	if list := outside(); len(list) > 0 {
		t.Errorf("of our own: %v", list)
	}
	exec1(t, pg, `CREATE FUNCTION fence.use(resource text) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT 1::bigint'`)
	exec1(t, pg, `CREATE FUNCTION objects.rows_1() RETURNS void LANGUAGE sql AS ''`)
	exec1(t, pg, `CREATE VIEW fence.old AS SELECT * FROM fence.resources`)
	// It is named like a function of fence.protect, but has another form.
	exec1(t, pg, `CREATE FUNCTION fence.stamp_1(x text) RETURNS void LANGUAGE sql SECURITY DEFINER AS ''`)
	exec1(t, pg, `CREATE FUNCTION fence.resource_of_99(x text) RETURNS text LANGUAGE sql AS 'SELECT x'`)
	exec1(t, pg, `CREATE PROCEDURE fence.rows_98(x int) LANGUAGE sql AS ''`)
	want := []string{"fence.old", "fence.resource_of_99(text)", "fence.rows_98(integer)", "fence.stamp_1(text)", "fence.use(text)", "objects.rows_1()"}
	if list := outside(); !slices.Equal(list, want) {
		t.Errorf("outside %v, want %v", list, want)
	}
}

// One set has a dropped function, while the other set is behind.
func TestWhatSomebodyDroppedIsPutBackWithAnotherSetsNewCode(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, noteSQL(t, "fence", stateOf(t, "fence")))
	exec1(t, pg, `DROP FUNCTION objects.is_named(uuid)`)
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)
}

func TestWhatSomebodyDroppedIsPutBack(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	for _, drop := range []string{`DROP FUNCTION fence.check_issued(text, bigint)`, `DROP VIEW fence.uncovered`, `DROP FUNCTION fence.staged(uuid)`} {
		up(t, pg.URL)
		exec1(t, pg, drop)
		s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.All)
		if err != nil || s.UpToDate() || len(s.Missing) != 1 || !strings.Contains(s.String(), "somebody dropped "+s.Missing[0]) {
			t.Errorf("%s: %v, %v", drop, s, err)
		}
	}
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)
}

// An upgrade neither waits for writers nor blocks them.
func TestUpLocksNoTableOfTheUsers(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `CREATE TABLE work (id bigint, token bigint)`)
	exec1(t, pg, `SELECT fence.protect('work', per_row => $$'work/' || id$$, stamp => 'token')`)
	exec1(t, pg, `SELECT fence.install_event_triggers()`) // they run on each function that is created
	for i, lock := range []string{`LOCK TABLE work IN ACCESS EXCLUSIVE MODE`, `SELECT * FROM work FOR UPDATE`} {
		inTheWay := blocker(t, pg, lock)
		k := newer(t, func(files fstest.MapFS) {
			edit(t, files, "fence/code/manifest.txt", fmt.Sprintf("\nrevision %d\n", revisionOf(t, "fence")+1), fmt.Sprintf("\nrevision %d\n", revisionOf(t, "fence")+1+i))
		})
		if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
			t.Errorf("%s: %v", lock, err)
		}
		wantSaid(t, k, pg, true, fmt.Sprintf("fence state %d, code %d; objects state %d, code %d: up to date",
			stateOf(t, "fence"), revisionOf(t, "fence")+1+i, stateOf(t, "objects"), revisionOf(t, "objects")+1))
		if err := inTheWay.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A reader of a view blocks its replacement, and the readers behind that. So the upgrade retries, and blocks them for a
// moment each time.
func TestUpWaitsForReadersOfAViewInShortTurns(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	reader := blocker(t, pg, `SELECT * FROM fence.protected`)
	done := make(chan error, 1)
	go func() { done <- newer(t, nil).Up(t.Context(), pg.URL, migrate.All) }()
	waitFor(t, pg, "the view is waited for", fmt.Sprintf(blockedOn, "%-- Protecting tables by a fence%"))
	waitFor(t, pg, "the wait was given up", `SELECT EXISTS (SELECT FROM pg_stat_database WHERE datname = current_database() AND xact_rollback > 0)
		AND NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'fence.protected'::regclass)`)
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Guards that an older version made keep working, and are listed until they are remade.
func TestGuardsOfAnOlderGenerationGoOn(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	older := kitOf(t, func(files fstest.MapFS) { // it did not record its generation
		edit(t, files, "fence/code/rows.sql", "COMMENT ON FUNCTION fence.rows_%s IS %L', number, format('generation %s', fence.generation())", "SELECT %s', number")
	})
	if err := older.Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	exec1(t, pg, `CREATE TABLE work (id bigint, token bigint) PARTITION BY RANGE (id)`)
	exec1(t, pg, `CREATE TABLE part PARTITION OF work FOR VALUES FROM (1) TO (9)`)
	exec1(t, pg, `CREATE TABLE plain ()`)
	exec1(t, pg, `SELECT fence.protect('work', per_row => $$'work/' || id$$, stamp => 'token'), fence.protect('plain', resource => 'work/1')`)
	exec1(t, pg, `SELECT fence.raise('work/1', 1, sha256('seal'), '')`)

	k := newer(t, nil)
	if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	guarded := func(what string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), `INSERT INTO work (id) VALUES (1)`); err == nil || !strings.Contains(err.Error(), "ZF002") {
			t.Errorf("%s: without a grant: %v", what, err)
		}
		var covered int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM fence.protected WHERE complete`).Scan(&covered); err != nil || covered != 3 {
			t.Errorf("%s: %d guards are complete, %v", what, covered, err)
		}
	}
	outdated := func() (list []string) {
		rows, _ := conn.Query(t.Context(), `SELECT relation::text FROM fence.outdated`)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	guarded("older guards")
	if list := outdated(); !slices.Equal(list, []string{"work"}) {
		t.Errorf("outdated: %v", list)
	}

	writer := blocker(t, pg, `LOCK TABLE part IN ROW EXCLUSIVE MODE`)
	if _, err := conn.Exec(t.Context(), `SELECT fence.refresh('work', '10 ms')`); err == nil || !strings.Contains(err.Error(), "55P03") {
		t.Errorf("refreshed beside a writer: %v", err)
	}
	guarded("not refreshed")
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT fence.refresh('work')`); err != nil {
		t.Error(err)
	}
	guarded("refreshed")
	if list := outdated(); len(list) > 0 {
		t.Errorf("outdated: %v", list)
	}
	if _, err := conn.Exec(t.Context(), `CREATE TABLE bare (); SELECT fence.refresh('bare')`); err == nil || !strings.Contains(err.Error(), "not protected") {
		t.Errorf("refreshed what is not protected: %v", err)
	}
}
