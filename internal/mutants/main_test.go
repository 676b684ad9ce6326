package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Each mutant applies to the current text, and names an existing test.
func TestEveryMutantApplies(t *testing.T) {
	t.Parallel()
	const root = "../.."
	tests, names := map[string]map[string]bool{}, map[string]bool{}
	for _, m := range all() {
		if tests[m.folder()] == nil {
			tests[m.folder()] = testsIn(t, filepath.Join(root, m.folder()))
		}
		if _, err := m.apply(root); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if !tests[m.folder()][m.test] {
			t.Errorf("%s: there is no %s", m.name, m.test)
		}
		if names[m.name] {
			t.Errorf("two mutants are called %s", m.name)
		}
		names[m.name] = true
	}
}

func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllStringSubmatch(string(text), -1) {
			tests[found[1]] = true
		}
	}
	return tests
}
