// Package mutants holds bugs that are seeded into the product on purpose. A run's judge must catch them, or it would
// not catch a real bug either.
//
// The guarantee: a replacement that does not apply to the product's current text is an error.
//
//	for _, m := range mutants.All {
//		statements, err := m.SQL(root)    // by a superuser, after `fencegate migrate up`
//		overlay, err := m.Overlay(root, dir) // for go build -overlay: of the gateway, and of the clients' program
//		…
//		caught := m.Caught(kinds)
//	}
package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Mutant is a bug and the run that has to find it.
type Mutant struct {
	Name string
	What string // the bug, and why this run finds it

	Functions []Replace // of PostgreSQL
	Files     []Replace // of the program

	Surfaces []string      // to use; none: all
	Faults   []string      // to play, named as in package fault; none: all
	MaxTTL   time.Duration // of the leases; 0: the default

	GuardedOnce bool // the rows' guard checks each statement only once

	PostgresLeases bool // leases come from PostgreSQL, without Redis
	Redis          int  // nodes; 0: the default
	Balancer       bool // HAProxy stands in front of the gateways

	Expect []string      // kinds of findings, at least one of which must occur
	Within time.Duration // time for a run to find it
}

// Replace is one change of a text.
type Replace struct {
	File     string // below the root of the repository
	Function string // name of the SQL function, which the file defines once
	Old      string // occurs exactly once, in the function or the file
	New      string
}

// Overlap is the kind of a round in which two leases of a resource were valid at the same time. That is no fault if a
// node's clock jumps. Without such a jump locks guarantee exclusion.
const Overlap = "overlap"

// Caught reports whether kinds contains one that the mutant should cause.
func (m Mutant) Caught(kinds []string) bool {
	return slices.ContainsFunc(kinds, func(kind string) bool { return slices.Contains(m.Expect, kind) })
}

// SQL returns the changed functions, each as its CREATE OR REPLACE statement.
func (m Mutant) SQL(root string) ([]string, error) {
	var names, texts []string
	for _, r := range m.Functions {
		i := slices.Index(names, r.Function)
		if i < 0 {
			text, err := function(root, r.File, r.Function)
			if err != nil {
				return nil, m.fault(err)
			}
			i, names, texts = len(names), append(names, r.Function), append(texts, text)
		}
		var err error
		if texts[i], err = r.apply(texts[i]); err != nil {
			return nil, m.fault(err)
		}
	}
	return texts, nil
}

// Overlay writes the changed files to a folder and returns them: path → path, both absolute.
func (m Mutant) Overlay(root, dir string) (map[string]string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, m.fault(err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, m.fault(err)
	}
	changed, overlay := map[string]string{}, map[string]string{}
	for _, r := range m.Files {
		path := filepath.Join(root, r.File)
		text, ok := changed[path]
		if !ok {
			raw, err := os.ReadFile(path)
			if err != nil {
				return nil, m.fault(err)
			}
			text = string(raw)
		}
		if changed[path], err = r.apply(text); err != nil {
			return nil, m.fault(err)
		}
	}
	for path, text := range changed {
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return nil, m.fault(err)
		}
		overlay[path] = filepath.Join(dir, "mutant-"+strings.ReplaceAll(relative, string(filepath.Separator), "-"))
		if err := os.WriteFile(overlay[path], []byte(text), 0o600); err != nil {
			return nil, m.fault(err)
		}
	}
	return overlay, nil
}

func (m Mutant) fault(err error) error { return fmt.Errorf("mutant %s: %w", m.Name, err) }

func (r Replace) apply(text string) (string, error) {
	if n := strings.Count(text, r.Old); n != 1 {
		return "", fmt.Errorf("%s %s has this text %d times, not once: %q", r.File, r.Function, n, r.Old)
	}
	return strings.Replace(text, r.Old, r.New, 1), nil
}

// function returns the statement in a file that creates a function.
func function(root, file, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return "", err
	}
	definition := `(?ms)^CREATE OR REPLACE FUNCTION ` + regexp.QuoteMeta(name) + `\(.*?^(?:END )?\$\$;$`
	found := regexp.MustCompile(definition).FindAllString(string(text), -1)
	if len(found) != 1 {
		return "", fmt.Errorf("%s defines %s %d times, not once", file, name, len(found))
	}
	return found[0], nil
}
