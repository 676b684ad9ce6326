package house

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files of tests that are named after no source file: what a package's tests share, and kinds of tests that a package has
// as a whole.
var shared = words(`main export harness setup fakes example bench fuzz torture simulation`)

// Packages whose tests test SQL: a file of tests there may be named after a file of migrations/*/code instead.
var testSQL = words(`fence/pgfence migrations`)

// A file of tests x_test.go tests x.go of its folder, or of a package in its internal, or is x_TOPIC_test.go. In
// [testSQL], x.sql counts as well. In a folder that has no code but tests, names are free.
func TestAFileOfTestsIsNamedAfterWhatItTests(t *testing.T) {
	t.Parallel()
	wrong := map[string]int{}
	for _, f := range tracked(t) {
		base, ok := strings.CutSuffix(filepath.Base(f), "_test.go")
		if !ok || !hasCode(t, filepath.Dir(f)) {
			continue
		}
		if !isAfterSource(filepath.Dir(f), base) {
			wrong[filepath.Dir(f)]++
			t.Errorf("%s: no %s.go stands beside it: name it after the file that it tests, SOURCE_test.go or SOURCE_TOPIC_test.go", f, base)
		}
	}
	for dir, n := range wrong {
		t.Logf("%s: %d", dir, n)
	}
}

func isAfterSource(dir, base string) bool {
	for {
		if shared[base] {
			return true
		}
		if found, _ := filepath.Glob(filepath.Join(root, dir, "internal/*", base+".go")); len(found) > 0 {
			return true
		}
		if _, err := os.Stat(filepath.Join(root, dir, base+".go")); err == nil {
			return true
		}
		if testSQL[dir] && isSQL(base) {
			return true
		}
		i := strings.LastIndex(base, "_")
		if i < 0 {
			return false
		}
		base = base[:i]
	}
}

func isSQL(base string) bool {
	files, err := filepath.Glob(filepath.Join(root, "migrations", "*", "code", base+".sql"))
	return err == nil && len(files) > 0
}

// hasCode reports whether a folder has a Go file besides tests and doc.go.
func hasCode(t *testing.T, dir string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if base := filepath.Base(f); base != "doc.go" && !strings.HasSuffix(base, "_test.go") {
			return true
		}
	}
	return false
}
