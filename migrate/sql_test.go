package migrate_test

import (
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// What a DBA applies by hand is what a program applies, its record included.
func TestThePlainSQLDoesWhatUpDoes(t *testing.T) {
	t.Parallel()
	whole := catalogueOf(t, testenv.Postgres(t).URL)
	for what, steps := range map[string][]migrate.Set{"at once": {migrate.All}, "one after the other": {migrate.Fence, migrate.Objects}} {
		pg := setup(t)
		for _, which := range steps {
			if err := plain(t, pg, which, 0); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		wantStatus(t, pg.OtherURL, true, false)
		if list := differences(whole, catalogueOf(t, pg.URL)); len(list) > 0 {
			t.Errorf("%s:\n%s", what, strings.Join(list, "\n"))
		}
		exec1(t, pg, `CREATE TABLE before AS SELECT applied_at FROM fencegate.code`)
		up(t, pg.URL) // finds nothing to do
		exec1(t, pg, `CREATE TABLE after AS SELECT applied_at FROM fencegate.code`)
		var same bool
		if err := pg.Pool(t).QueryRow(t.Context(), `SELECT (SELECT array_agg(applied_at) FROM before) = (SELECT array_agg(applied_at) FROM after)`).Scan(&same); err != nil || !same {
			t.Errorf("%s: up applied the code again, %v", what, err)
		}
		if err := migrate.Down(t.Context(), pg.URL, migrate.All, false); err != nil {
			t.Error(err)
		}
	}
}

func TestThePlainSQLUpgradesFromWhatIsThere(t *testing.T) {
	t.Parallel()
	fresh, pg := setup(t), setup(t)
	k := kitOf(t, func(files fstest.MapFS) {
		step(files, "fence", 3)
		step(files, "objects", 2)
		step(files, "objects", 3)
		revise(t, files, "objects", 4)
	})
	if err := k.Up(t.Context(), fresh.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	up(t, pg.URL)
	for what, err := range map[string]error{
		"is not at state 0": plainOf(t, k, pg, migrate.Objects, 0),
		"is not at state 2": plainOf(t, k, pg, migrate.Objects, 2),
		"of which set":      k.WriteSQL(io.Discard, migrate.All, 1),
		"at most":           k.WriteSQL(io.Discard, migrate.Fence, 4),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q", err, what)
		}
	}
	wantStatus(t, pg.URL, true, false) // nothing was changed
	for which, from := range map[migrate.Set]int{migrate.Fence: 2, migrate.Objects: 1} {
		if err := plainOf(t, k, pg, which, from); err != nil {
			t.Fatal(err)
		}
	}
	wantSaid(t, k, pg, true, "fence state 3, code 3; objects state 3, code 4: up to date")
	if list := differences(catalogueOf(t, fresh.URL), catalogueOf(t, pg.URL)); len(list) > 0 {
		t.Errorf("upgraded by hand is not as fresh:\n%s", strings.Join(list, "\n"))
	}
	if err := plain(t, pg, migrate.Objects, 1); err == nil || !strings.Contains(err.Error(), "is not at state 1") {
		t.Errorf("an older text: %v", err)
	}
	alone := setup(t)
	if err := plain(t, alone, migrate.Objects, 0); err == nil || !strings.Contains(err.Error(), "needs the set fence") {
		t.Errorf("the objects without a fence: %v", err)
	}
}
