package table_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/mutants/table"
	"github.com/fencegate/fencegate/internal/testenv"
)

const root = "../../.."

func TestMain(m *testing.M) { testenv.Main(m) }

// Each mutant applies to the current texts, and names an existing test, or what its run has to find.
func TestEveryMutantApplies(t *testing.T) {
	t.Parallel()
	tests, names := map[string]string{}, map[string]bool{}
	for _, m := range table.All {
		if m.Name == "" || names[m.Name] || m.What == "" || (m.Test == "") == (m.Run == nil) {
			t.Errorf("%q: incomplete, or twice", m.Name)
		}
		names[m.Name] = true
		_, err := m.SQL(root)
		if err != nil {
			t.Error(err)
		}
		if _, err := m.Overlay(root, t.TempDir()); err != nil {
			t.Error(err)
		}
		if m.Run != nil {
			if len(m.Run.Expect) == 0 || m.Run.Within == 0 || !m.Run.Caught(m.Run.Expect[:1]) || m.Run.Caught([]string{"something else"}) || m.Run.Caught(nil) {
				t.Errorf("%s: caught by nothing, or by something else", m.Name)
			}
			continue
		}
		folder, name := m.InTest()
		if tests[folder] == "" {
			tests[folder] = testsIn(t, filepath.Join(root, folder))
		}
		if !strings.Contains(tests[folder], "\nfunc "+name+"(") {
			t.Errorf("%s: there is no %s", m.Name, m.Test)
		}
	}
}

// testsIn returns the texts of a folder's tests.
func testsIn(t *testing.T, dir string) (texts string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts += string(text)
	}
	return texts
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
	for _, m := range table.All {
		statements, err := m.SQL(root)
		if err != nil {
			t.Error(err)
		}
		for _, sql := range statements {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
	}
	if after := count(); after != before {
		t.Errorf("%d functions, and %d before: one was made beside the one that it should replace", after, before)
	}
}

func TestATextThatIsNotThereOnceIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "CREATE OR REPLACE FUNCTION a.b(x int) RETURNS int AS $$\nBEGIN\n  RETURN 1 + 1;\nEND $$;\n"
	if err := os.WriteFile(filepath.Join(dir, "f.sql"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for old, ok := range map[string]bool{"RETURN 1": true, "1": false, "2": false, "RETURN 2": false} {
		m := table.Mutant{File: "f.sql", Function: "a.b", Old: old, New: "RETURN 2"}
		got, err := m.SQL(dir)
		if (err == nil) != ok || ok && !strings.Contains(got[0], "RETURN 2 + 1") {
			t.Errorf("%q: %v, %v", old, got, err)
		}
		m.Function = ""
		files, err := m.Overlay(dir, t.TempDir())
		if (err == nil) != ok || ok && !regexp.MustCompile(`^.*/mutant-f\.sql$`).MatchString(files[filepath.Join(dir, "f.sql")]) {
			t.Errorf("%q in a file: %v, %v", old, files, err)
		}
	}
	if _, err := (table.Mutant{File: "f.sql", Function: "a.c"}).SQL(dir); err == nil {
		t.Error("a function that is not there")
	}
	if _, err := (table.Mutant{File: "internal/mutants/table/grants.go", Old: "package table"}).Overlay(root, t.TempDir()); err == nil {
		t.Error("a text of the table itself")
	}
}
