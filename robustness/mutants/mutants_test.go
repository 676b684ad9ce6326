package mutants_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/mutants"
)

const root = "../.."

func TestMain(m *testing.M) { testenv.Main(m) }

func TestEachMutantSaysWhatItIsAndWhoFindsIt(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range mutants.All {
		if m.Name == "" || seen[m.Name] || m.What == "" || len(m.Functions)+len(m.Files) == 0 ||
			len(m.Expect) == 0 || m.Within == 0 {
			t.Errorf("%s: incomplete, or twice", m.Name)
		}
		seen[m.Name] = true
		for _, s := range m.Surfaces {
			if !slices.Contains(client.Surfaces, s) {
				t.Errorf("%s: there is no surface %s", m.Name, s)
			}
		}
		if slices.Contains(m.Expect, mutants.Overlap) && jumps(m.Faults) {
			t.Errorf("%s: overlaps say nothing where clocks jump", m.Name)
		}
		if !m.Caught(m.Expect[:1]) || m.Caught([]string{"something else"}) || m.Caught(nil) {
			t.Errorf("%s: caught by something else", m.Name)
		}
	}
	if len(seen) < 12 {
		t.Errorf("%d mutants; at least 12 are promised", len(seen))
	}
}

// jumps reports whether the faults set a node's clock.
func jumps(faults []string) bool {
	return len(faults) == 0 || slices.Contains(faults, "redis") || slices.Contains(faults, "redis-clock")
}

// PostgreSQL accepts each changed function, and the function differs from the original.
func TestEachChangedFunctionReplacesTheOneThatIsThere(t *testing.T) {
	t.Parallel()
	admin := testenv.Postgres(t).Pool(t)
	count := func() (n int) {
		t.Helper()
		err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
			WHERE n.nspname IN ('fence', 'objects')`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	for _, m := range mutants.All {
		statements, err := m.SQL(root)
		if err != nil {
			t.Error(err)
		}
		tx, err := admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range statements {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	if after := count(); after != before {
		t.Errorf("%d functions, and %d before: one was made beside the one that it should replace", after, before)
	}
}

// Each mutant applies to the current texts, and changes them.
func TestEachMutantApplies(t *testing.T) {
	t.Parallel()
	for _, m := range mutants.All {
		if _, err := m.SQL(root); err != nil {
			t.Error(err)
		}
		overlay, err := m.Overlay(root, t.TempDir())
		if err != nil {
			t.Error(err)
		}
		for from, to := range overlay {
			old, oldErr := os.ReadFile(from)
			changed, err := os.ReadFile(to)
			if oldErr != nil || err != nil || string(old) == string(changed) || !filepath.IsAbs(from) {
				t.Errorf("%s: %s: %v, %v", m.Name, from, oldErr, err)
			}
		}
	}
}

func TestATextThatIsNotThereOnceIsAnError(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f.sql")
	text := "CREATE OR REPLACE FUNCTION a.b(x int) RETURNS int AS $$\nBEGIN\n  RETURN 1 + 1;\nEND $$;\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for old, ok := range map[string]bool{"RETURN 1": true, "1": false, "2": false} {
		r := mutants.Replace{File: "f.sql", Function: "a.b", Old: old, New: "RETURN 2"}
		got, err := mutants.Mutant{Functions: []mutants.Replace{r}}.SQL(filepath.Dir(file))
		if (err == nil) != ok || ok && !strings.Contains(got[0], "RETURN 2 + 1") {
			t.Errorf("%q: %v, %v", old, got, err)
		}
		_, err = mutants.Mutant{Files: []mutants.Replace{r}}.Overlay(filepath.Dir(file), t.TempDir())
		if (err == nil) != ok {
			t.Errorf("%q in a file: %v", old, err)
		}
	}
	missing := mutants.Mutant{Functions: []mutants.Replace{{File: "f.sql", Function: "a.c"}}}
	if _, err := missing.SQL(filepath.Dir(file)); err == nil {
		t.Error("a function that is not there")
	}
}

// Building them takes minutes, so it needs FENCEGATE_BUILD_MUTANTS=all, or names separated by commas.
func TestEachChangedProgramCompiles(t *testing.T) {
	t.Parallel()
	wanted := strings.Split(os.Getenv("FENCEGATE_BUILD_MUTANTS"), ",")
	for _, m := range mutants.All {
		if len(m.Files) == 0 || wanted[0] != "all" && !slices.Contains(wanted, m.Name) {
			continue
		}
		dir := t.TempDir()
		overlay, err := m.Overlay(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(map[string]any{"Replace": overlay})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		build := exec.CommandContext(t.Context(), "go", "build", "-overlay", file, "-o", os.DevNull, "./cmd/fencegate")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", m.Name, err, out)
		}
	}
}
