package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A command of docs/bugs.md that runs no test would report that a bug is gone.
func TestEachCommandOfTheBugsRunsATest(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/bugs.md"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("(?:cd ([\\w/]+) && )?go test -run (?:'([^']+)'|(\\w\\S*)) (\\.[\\w/]*(?: \\./[\\w/]*)*)`")
	found := command.FindAllStringSubmatch(string(page), -1)
	if len(found) < 100 {
		t.Errorf("%d commands were read", len(found))
	}
	for _, c := range found {
		var tests []string
		for folder := range strings.FieldsSeq(c[4]) {
			tests = append(tests, testsIn(t, filepath.Join(root, c[1], folder))...)
		}
		for pattern := range strings.SplitSeq(strings.ReplaceAll(c[2]+c[3], `\|`, "|"), "|") {
			pattern, _, _ = strings.Cut(pattern, "/")
			if expression, err := regexp.Compile(pattern); err == nil && !expression.MatchString(strings.Join(tests, "\n")) {
				t.Errorf("no test in %s matches %s", c[4], pattern)
			}
		}
	}
}

func testsIn(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w+)`)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}
