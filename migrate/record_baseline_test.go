package migrate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// edited is a program whose baselines are others.
func edited(t *testing.T) migrate.Kit {
	t.Helper()
	return kitOf(t, func(files fstest.MapFS) {
		for _, set := range []string{"fence", "objects"} {
			file := set + "/state/000001_baseline.up.sql"
			edit(t, files, file, "\nRESET ROLE;\n", fmt.Sprintf("\nCREATE TABLE %s.edited ();\nRESET ROLE;\n", set))
			edit(t, files, file, ours(t, set).Baseline, "0123456789ab")
		}
	})
}

// refusesBaseline requires that nothing changes a database that another baseline made, and that all say so.
func refusesBaseline(t *testing.T, pg testenv.PG, what, says string) {
	t.Helper()
	before := catalogueOf(t, pg.URL)
	for doing, err := range map[string]error{
		"up": migrate.Up(t.Context(), pg.URL, migrate.All), "up of one set": migrate.Up(t.Context(), pg.URL, migrate.Fence),
		"down": migrate.Down(t.Context(), pg.URL, migrate.All, true),
	} {
		if e, ok := errors.AsType[*migrate.OtherBaselineError](err); !ok || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "DROP DATABASE") {
			t.Errorf("%s: %s: %+v, %v", what, doing, e, err)
		}
	}
	if err := plain(t, pg, migrate.All, 0); err == nil {
		t.Errorf("%s: the SQL for an empty database was applied", what)
	}
	if after := catalogueOf(t, pg.URL); after != before {
		t.Errorf("%s: it was changed:\n%s", what, strings.Join(differences(before, after), "\n"))
	}
	s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.All)
	if err != nil || s.Other() == nil || s.UpToDate() || s.Newer() || s.Serves() || s.Gone() || !strings.Contains(s.String(), says) || len(s.Outside) > 0 {
		t.Errorf("%s: %+v, %v", what, s, err)
	}
}

// A state of another baseline has other tables under the same numbers, so nothing is done by them. The records of the steps
// that the baseline replaced, and of the one set before them, count as another baseline's.
func TestADatabaseOfAnotherBaselineIsLeftAlone(t *testing.T) {
	t.Parallel()
	const (
		owned   = `CREATE SCHEMA fence AUTHORIZATION fence_owner; CREATE TABLE fence.resources (); ALTER TABLE fence.resources OWNER TO fence_owner; `
		objects = `CREATE SCHEMA objects AUTHORIZATION fence_owner; `
		tables  = `CREATE SCHEMA fencegate; CREATE TABLE fencegate.code (name text PRIMARY KEY, revision integer NOT NULL, hash text NOT NULL,
 min_program integer NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()); CREATE TABLE fencegate.fence_state (version bigint PRIMARY KEY, dirty boolean NOT NULL);
CREATE TABLE fencegate.objects_state (LIKE fencegate.fence_state); GRANT USAGE ON SCHEMA fencegate TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA fencegate TO PUBLIC; `
		steps = owned + objects + tables + `INSERT INTO fencegate.fence_state VALUES (8, false); INSERT INTO fencegate.objects_state VALUES (5, false);
INSERT INTO fencegate.code VALUES ('fence', 25, 'd5b34d8bc724bfbe61672ae06a286404697d4dbfad1e47abb3855937f57b4934', 1),
 ('objects', 12, '2d9f2638c4729f7c43135ef6b06aedb65337c8ee8ffcdf5210994baeade4f128', 1);
COMMENT ON SCHEMA fence IS 'fencegate fence state 8, code 25 d5b34d8bc724'; COMMENT ON SCHEMA objects IS 'fencegate objects state 5, code 12 2d9f2638c472'; `
		preRelease = `CREATE SCHEMA fencegate; GRANT USAGE ON SCHEMA fencegate TO PUBLIC; CREATE TABLE fencegate.migrations (version bigint, dirty boolean); INSERT INTO fencegate.migrations VALUES (48, false); `
		preNote    = `COMMENT ON SCHEMA fence IS 'fencegate schema version 48'; `
	)
	for what, c := range map[string]struct{ sql, says string }{
		"eight steps and five":               {steps, "fencegate fence state 8, code 25 d5b34d8bc724"},
		"one step of eight":                  {steps + `COMMENT ON SCHEMA fence IS 'fencegate fence state 1'; UPDATE fencegate.fence_state SET version = 1`, "fencegate fence state 1"},
		"their step under way":               {steps + `COMMENT ON SCHEMA fence IS 'fencegate fence state 7'; UPDATE fencegate.fence_state SET version = 8, dirty = true`, "fencegate fence state 7"},
		"their first step begun again":       {steps + `UPDATE fencegate.fence_state SET version = 1, dirty = true`, "state 8"},
		"their record lost":                  {steps + `DROP SCHEMA fencegate CASCADE`, "state 8"},
		"their record emptied":               {steps + `DELETE FROM fencegate.fence_state; DELETE FROM fencegate.objects_state; DELETE FROM fencegate.code`, "state 8"},
		"their comment lost":                 {steps + `COMMENT ON SCHEMA fence IS NULL`, "version 8 in fencegate.fence_state"},
		"their comment lost, in a step":      {steps + `COMMENT ON SCHEMA fence IS NULL; UPDATE fencegate.fence_state SET dirty = true`, "version 8 in fencegate.fence_state"},
		"another hash":                       {owned + `COMMENT ON SCHEMA fence IS 'fencegate fence state 1 0123456789ab, code 99 0123456789ab'`, "state 1 0123456789ab"},
		"another hash, and a later state":    {owned + `COMMENT ON SCHEMA fence IS 'fencegate fence state 3 0123456789ab'`, "state 3 0123456789ab"},
		"what no program writes":             {owned + `COMMENT ON SCHEMA fence IS 'fencegate fence'`, "fencegate fence"},
		"a pre-release":                      {owned + preRelease + preNote, "fencegate schema version 48"},
		"a pre-release, its record is lost":  {owned + preNote, "fencegate schema version 48"},
		"a pre-release, its comment is lost": {owned + preRelease, "fencegate.migrations"},
		"a pre-release's record alone":       {preRelease, "fencegate.migrations"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			pg := setup(t)
			exec1(t, pg, c.sql)
			refusesBaseline(t, pg, what, c.says)
			if err := plain(t, pg, migrate.Fence, 1); err == nil {
				t.Error("the SQL for this program's state was applied")
			}
		})
	}
}

// The baseline was edited since, or is not edited yet. The error's own statements lead out.
func TestADatabaseOfAnEditedBaselineIsMadeAgain(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	theirs := edited(t)
	if err := theirs.Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	exec1(t, pg, `CREATE TABLE work (id int); SELECT fence.protect('work', resource => 'r'), fence.install_event_triggers()`)
	refusesBaseline(t, pg, "edited", "state 1 0123456789ab")
	if s, err := theirs.Look(t.Context(), pg.OtherURL, migrate.All); err != nil || !s.UpToDate() {
		t.Errorf("to the program that made it: %v, %v", s, err)
	}

	_, wayOut, _ := strings.Cut(migrate.Up(t.Context(), pg.URL, migrate.All).Error(), "or: ")
	wayOut, _, _ = strings.Cut(wayOut, " which forgets")
	exec1(t, pg, wayOut)
	exec1(t, pg, `INSERT INTO work VALUES (1)`) // the table stays, without its guard
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)
	exec1(t, pg, `SELECT fence.protect('work', resource => 'r'), fence.install_event_triggers()`)
	if err := theirs.Up(t.Context(), pg.URL, migrate.All); err == nil || !strings.Contains(err.Error(), "another baseline") {
		t.Errorf("the other way round: %v", err)
	}
}

// A gateway without an S3 port serves whatever made the objects.
func TestEachSetHasItsOwnBaseline(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `COMMENT ON SCHEMA objects IS 'fencegate objects state 5, code 12 2d9f2638c472'`)
	refusesBaseline(t, pg, "the objects", "the set objects")
	if s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.Fence); err != nil || !s.Serves() {
		t.Errorf("the fence: %v, %v", s, err)
	}
	exec1(t, pg, noteSQL(t, "objects", 1)+`COMMENT ON SCHEMA fence IS 'fencegate fence state 8, code 25 d5b34d8bc724'`)
	if err := plain(t, pg, migrate.Objects, 1); err == nil || !strings.Contains(err.Error(), "needs the set fence") {
		t.Errorf("the SQL for the objects: %v", err)
	}
}

// A dump without comments has the tables without what says which baseline made them. The error says how to go on.
func TestALostCommentIsPutBack(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	for what, lost := range map[string]string{
		"none": `COMMENT ON SCHEMA fence IS NULL`, "the users'": `COMMENT ON SCHEMA fence IS 'mine'`,
		"none, in a step": `COMMENT ON SCHEMA fence IS NULL; UPDATE fencegate.fence_state SET dirty = true`,
	} {
		up(t, pg.URL)
		exec1(t, pg, lost)
		refusesBaseline(t, pg, what, "COMMENT ON SCHEMA fence IS 'fencegate fence state 1 "+ours(t, "fence").Baseline+"'")
		_, putBack, _ := strings.Cut(migrate.Up(t.Context(), pg.URL, migrate.All).Error(), "put the comment back: ")
		putBack, _, _ = strings.Cut(putBack, "; then")
		exec1(t, pg, putBack)
		up(t, pg.URL)
		wantStatus(t, pg.URL, true, false)
	}
}
