// Package table lists the bugs that are seeded into the product on purpose, and what has to catch each of them: a test,
// or a run of robustness with its judge. What does not catch them would not catch a real bug either.
//
// The guarantee: a change whose text does not occur exactly once in the product is an error.
//
//	m, err := table.Find("guard-without-lock")
//	statements, err := m.SQL(root)       // for a superuser, after `fencegate migrate up`
//	overlay, err := m.Overlay(root, dir) // for go build -overlay
package table

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Mutant is a bug: one text of the product is replaced, or several. Test or Run is set.
type Mutant struct {
	Name string
	What string // the bug; with a Run also why that finds it

	File     string // below the root of the repository
	Function string // of SQL, which the file defines once; "": the whole file is the text
	Old      string // occurs exactly once
	New      string
	Also     []Change

	Test string // that fails: the folder of its package, a dot, and its name
	Run  *Run   // that finds it
}

// Change is a further replacement, as in a Mutant.
type Change struct{ File, Function, Old, New string }

// Run is a run of robustness.
type Run struct {
	Surfaces    []string      // to use; none: all
	Faults      []string      // to play, named as in robustness/fault; none: all
	MaxTTL      time.Duration // of the leases; 0: the default
	GuardedOnce bool          // the rows' guard checks each statement only once
	Soak        bool          // without faults

	PostgresLeases bool // leases come from PostgreSQL, without Redis
	Redis          int  // nodes; 0: the default
	Balancer       bool // HAProxy stands in front of the gateways

	Expect []string      // kinds of findings, at least one of which must occur
	Within time.Duration // time to find it
}

// Overlap is the kind of a round in which two leases of a resource were valid at the same time. That is no fault if a
// node's clock jumps. Without such a jump locks guarantee exclusion.
const Overlap = "overlap"

// All lists the mutants.
var All = slices.Concat(grants, admission, clocked, service, tortured, fences, objects, outcomes, surfaces, modes)

// Find returns the mutant of that name.
func Find(name string) (Mutant, error) {
	i := slices.IndexFunc(All, func(m Mutant) bool { return m.Name == name })
	if i < 0 {
		return Mutant{}, fmt.Errorf("no mutant is called %q", name)
	}
	return All[i], nil
}

// Sound returns the mutant without its bug.
func (m Mutant) Sound() Mutant {
	m.File, m.Also = "", nil
	return m
}

// InTest returns the folder of the test's package, and the test's name.
func (m Mutant) InTest() (folder, name string) {
	dot := strings.LastIndexByte(m.Test, '.')
	return m.Test[:max(0, dot)], m.Test[dot+1:]
}

// Caught reports whether kinds contains one that the run should find.
func (r Run) Caught(kinds []string) bool {
	return slices.ContainsFunc(kinds, func(kind string) bool { return slices.Contains(r.Expect, kind) })
}

// SQL returns the changed functions, each as its CREATE OR REPLACE statement.
func (m Mutant) SQL(root string) (statements []string, err error) {
	texts, err := m.changed(root, true)
	for _, t := range texts {
		statements = append(statements, t.text)
	}
	return statements, err
}

// Overlay writes the changed files to a folder and returns them: path → path, both absolute.
func (m Mutant) Overlay(root, dir string) (map[string]string, error) {
	texts, err := m.changed(root, false)
	if err != nil {
		return nil, err
	}
	overlay := map[string]string{}
	for _, t := range texts {
		from, err := filepath.Abs(filepath.Join(root, t.file))
		if err != nil {
			return nil, err
		}
		to, err := filepath.Abs(filepath.Join(dir, "mutant-"+strings.ReplaceAll(t.file, "/", "-")))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, []byte(t.text), 0o600); err != nil {
			return nil, err
		}
		overlay[from] = to
	}
	return overlay, nil
}

// changed is a file or a function with all its changes.
type changed struct{ file, function, text string }

// changed makes the changes of functions, or those of files.
func (m Mutant) changed(root string, functions bool) (texts []changed, err error) {
	for _, c := range append([]Change{{m.File, m.Function, m.Old, m.New}}, m.Also...) {
		if c.File == "" || functions != (c.Function != "") {
			continue
		}
		i := slices.IndexFunc(texts, func(t changed) bool { return t.file == c.File && t.function == c.Function })
		if i < 0 {
			text, err := original(root, c.File, c.Function)
			if err != nil {
				return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
			}
			i, texts = len(texts), append(texts, changed{c.File, c.Function, text})
		}
		if n := strings.Count(texts[i].text, c.Old); n != 1 || c.Old == c.New {
			return nil, fmt.Errorf("mutant %s: %s %s has this text %d times, not once: %q", m.Name, c.File, c.Function, n, c.Old)
		}
		texts[i].text = strings.Replace(texts[i].text, c.Old, c.New, 1)
	}
	return texts, nil
}

// original returns the text of a file, or the statement in it that creates a function.
func original(root, file, function string) (string, error) {
	if strings.HasPrefix(file, "internal/mutants/") {
		return "", fmt.Errorf("%s is this table, which has every text", file)
	}
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil || function == "" {
		return string(text), err
	}
	definition := `(?ms)^CREATE OR REPLACE FUNCTION ` + regexp.QuoteMeta(function) + `\(.*?^(?:END )?\$\$;$`
	found := regexp.MustCompile(definition).FindAllString(string(text), -1)
	if len(found) != 1 {
		return "", fmt.Errorf("%s defines %s %d times, not once", file, function, len(found))
	}
	return found[0], nil
}
