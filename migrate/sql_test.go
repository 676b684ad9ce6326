package migrate_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// The SQL for a DBA does the same as Up, its record included.
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
	mine, theirs := stateOf(t, "fence"), stateOf(t, "objects")
	k := kitOf(t, func(files fstest.MapFS) {
		step(t, files, "fence", mine+1, "")
		step(t, files, "objects", theirs+1, "")
		step(t, files, "objects", theirs+2, "")
		revise(t, files, "objects")
	})
	if err := k.Up(t.Context(), fresh.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	up(t, pg.URL)
	for what, err := range map[string]error{
		"is not at state 0":                      plainOf(t, k, pg, migrate.Objects, 0),
		fmt.Sprint("is not at state ", theirs+1): plainOf(t, k, pg, migrate.Objects, theirs+1),
		"name one set":                           k.WriteSQL(io.Discard, migrate.All, 1),
		"at most":                                k.WriteSQL(io.Discard, migrate.Fence, mine+2),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q", err, what)
		}
	}
	wantStatus(t, pg.URL, true, false) // nothing has changed
	for _, x := range []struct {
		which migrate.Set
		from  int
	}{{migrate.Fence, mine}, {migrate.Objects, theirs}} {
		if err := plainOf(t, k, pg, x.which, x.from); err != nil {
			t.Fatal(err)
		}
	}
	wantSaid(t, k, pg, true, fmt.Sprintf("fence state %d, code %d; objects state %d, code %d: up to date", mine+1, revisionOf(t, "fence"), theirs+2, revisionOf(t, "objects")+1))
	if list := differences(catalogueOf(t, fresh.URL), catalogueOf(t, pg.URL)); len(list) > 0 {
		t.Errorf("upgraded by psql is not as fresh:\n%s", strings.Join(list, "\n"))
	}
	if err := plain(t, pg, migrate.Objects, theirs); err == nil || !strings.Contains(err.Error(), fmt.Sprint("is not at state ", theirs)) {
		t.Errorf("an older text: %v", err)
	}
	alone := setup(t)
	if err := plain(t, alone, migrate.Objects, 0); err == nil || !strings.Contains(err.Error(), "needs the set fence") {
		t.Errorf("the objects without a fence: %v", err)
	}
}
