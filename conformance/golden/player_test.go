package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// written plays a scenario that makes no requests.
func written(t *testing.T, text string) (*transcript, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.txt")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &player{ctx: t.Context(), vars: map[string]string{}, defines: map[string]*step{}}
	p.t = &transcript{mask: &mask{fixed: strings.NewReplacer(), names: map[string]string{}, count: map[string]int{}}}
	steps, err := read(file, directives())
	if err != nil {
		return p.t, err
	}
	return p.t, recovered(func() { p.play(steps) })
}

func TestAMistakeIsNamedWithItsLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"line a\nlien b":                           `x.txt:2: lien b: unknown directive "lien"`,
		"line ${a}":                                `x.txt:1: line ${a}: variable "a" is not set`,
		"each a in 1 2\n  line ${a} ${b}":          `x.txt:2: line ${a} ${b} (a=1): variable "b" is not set`,
		"let a = x\neach b in 1 ${a}\n  line ${c}": "x.txt:3: line ${c} (b 1): variable",
		"each a in\n  line ${a}":                   "x.txt:1: each a in: no rows",
		"each a | b\n  - 1\n  line ${a}":           `x.txt:1: each a | b: the row "1" has fewer columns`,
		"define a":                                 "x.txt:1: define a: no steps are indented under it",
		"line a\n  - 1":                            "x.txt:1: line a: only each has rows",
		"define a ${b} of ${c}\n line b\na 1 2":    "x.txt:3: a 1 2: write: a ${b} of ${c}",
		"root GET":                                 `x.txt:1: root GET: unknown directive "root"`,
		"root GET /":                               `x.txt:1: root GET /: no lease or keys are named "root"`,
		"api GET / | nonsense":                     `x.txt:1: api GET / | nonsense: unknown option "nonsense"`,
		"ready":                                    "x.txt:1: ready: no session is open",
		"// nothing":                               "x.txt has no steps",
	} {
		if _, err := written(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestADifferenceIsHeadedByItsStep(t *testing.T) {
	t.Parallel()
	got, err := written(t, "line one\nline two\nline three")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "was.txt")
	if err := os.WriteFile(path, []byte("one\n2\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	diff, err := got.compare(path)
	if err != nil || !strings.Contains(diff, "x.txt:2: line two\n-2\n+two\n") {
		t.Errorf("%v\n%s", err, diff)
	}
}
