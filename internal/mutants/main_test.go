package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/mutants/table"
)

// A program of one rule, and its test.
func TestAMutantIsCaughtByItsTestAlone(t *testing.T) {
	t.Parallel()
	p := program{root: t.TempDir(), dir: t.TempDir(), out: io.Discard}
	for name, text := range map[string]string{
		"go.mod":       "module toy\n\ngo 1.26\n",
		"sum.go":       "package toy\n\nfunc sum(a, b int) int { return a + b }\n",
		"sum_test.go":  "package toy\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif sum(1, 2) != 3 {\n\t\tt.Fail()\n\t}\n}\n",
		"red_test.go":  "package toy\n\nimport \"testing\"\n\nfunc TestRed(t *testing.T) { t.Fail() }\n",
		"none_test.go": "package toy\n\nimport \"testing\"\n\nfunc TestNothing(*testing.T) {}\n",
	} {
		if err := os.WriteFile(filepath.Join(p.root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bug := table.Mutant{Name: "bug", File: "sum.go", Old: "a + b", New: "a - b", Test: "..TestSum"}
	if text, err := p.test(t.Context(), bug); err != nil || text != "caught by TestSum" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := (&program{root: p.root, dir: p.dir, out: io.Discard, sound: true}).test(t.Context(), bug.Sound()); err != nil {
		t.Errorf("without the bug: %q, %v", text, err)
	}
	if err := p.pass(t.Context(), []table.Mutant{bug, bug}); err != nil {
		t.Error(err)
	}
	red := table.Mutant{Name: "red", File: "sum.go", Old: "a + b", New: "a - b", Test: "..TestRed"}
	if err := p.pass(t.Context(), []table.Mutant{bug, red}); err == nil || !strings.Contains(err.Error(), "fails without a bug") {
		t.Errorf("a test that fails anyway: %v", err)
	}
	for what, m := range map[string]table.Mutant{
		"no test failed by itself": {File: "sum.go", Old: "a + b", New: "a +", Test: "..TestSum"},
		"there is no":              {File: "sum.go", Old: "a + b", New: "a - b", Test: "..TestMissing"},
		"2 times, not once":        {File: "sum.go", Old: "int", New: "int8", Test: "..TestSum"},
		"ESCAPED":                  {File: "sum.go", Old: "a + b", New: "a - b", Test: "..TestNothing"},
	} {
		text, err := p.test(t.Context(), m)
		if err == nil || !strings.Contains(err.Error(), what) || errors.Is(err, errEscaped) != (what == "ESCAPED") {
			t.Errorf("%s: %q, %v", what, text, err)
		}
	}
}

func TestKindsAreTestsAndRuns(t *testing.T) {
	t.Parallel()
	counts := map[string]int{}
	for _, kind := range []string{"", "tests", "runs", "all"} {
		wanted, err := choose(kind, nil)
		if err != nil {
			t.Error(err)
		}
		counts[kind] = len(wanted)
	}
	if counts["tests"]*counts["runs"] == 0 || counts[""] != counts["tests"] || counts["tests"]+counts["runs"] != counts["all"] {
		t.Errorf("%v", counts)
	}
	if wanted, err := choose("", []string{"drain-skipped", "no-base"}); err != nil || len(wanted) != 2 || wanted[0].Run == nil {
		t.Errorf("by their names: %v, %v", wanted, err)
	}
	if _, err := choose("races", nil); err == nil {
		t.Error("a kind that there is not")
	}
	if _, err := choose("", []string{"races"}); err == nil {
		t.Error("a name that there is not")
	}
}
