package migrate_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/migrations"
)

// Recovery after an interruption relies on each step's note of what is applied: its own version, or, for a down step,
// the one before it.
func TestEachStepSaysWhatIsAppliedAfterIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fence", "objects"} {
		state, err := fs.Sub(migrations.FS, name+"/state")
		if err != nil {
			t.Fatal(err)
		}
		ups, err := fs.Glob(state, "*.up.sql")
		if err != nil || len(ups) == 0 {
			t.Fatal(ups, err)
		}
		before := 0
		for _, up := range ups { // in the order of their names
			var version int
			if _, err := fmt.Sscanf(up, "%06d_", &version); err != nil {
				t.Fatal(up, err)
			}
			says := map[string]int{up: version}
			if before > 0 { // the first step drops the schema
				says[strings.TrimSuffix(up, ".up.sql")+".down.sql"] = before
			}
			for file, want := range says {
				text, err := fs.ReadFile(state, file)
				if err != nil {
					t.Fatal(err)
				}
				lines := strings.Split(strings.TrimSpace(string(text)), "\n")
				if last := lines[len(lines)-1] + "\n"; last != noteSQL(t, name, want) {
					t.Errorf("%s/state/%s ends with %q, want it to say version %d", name, file, last, want)
				}
			}
			before = version
		}
	}
}
