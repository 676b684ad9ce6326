package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// scenario has the name of its transcript.
type scenario struct {
	name  string
	steps []*step
}

// step is a line of a scenario, with the rows of its table, and the lines that are indented under it.
type step struct {
	file  string
	line  int
	text  string
	rows  []string
	under []*step
}

func (s *step) String() string { return fmt.Sprintf("%s:%d: %s", s.file, s.line, s.text) }

func (s *step) failf(format string, args ...any) error {
	return &failure{s.String(), fmt.Errorf(format, args...)}
}

// load reads the steps that all scenarios share, and the scenarios whose names begin with a text. They are in the order in
// which they are played: by name, but first those that begin with "first", and last those that begin with "last".
func load(folder, only string) (shared []*step, list []scenario, err error) {
	known := directives()
	if shared, err = read(filepath.Join(folder, "scenarios/shared.txt"), known); err != nil {
		return nil, nil, err
	}
	files, err := filepath.Glob(filepath.Join(folder, "scenarios", only+"*.txt"))
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".txt"); name != "shared" {
			steps, fails := read(file, maps.Clone(known))
			list, err = append(list, scenario{name, steps}), errors.Join(err, fails)
		}
	}
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("no scenario's name begins with %q", only)
	}
	if err != nil {
		return nil, nil, err
	}
	order := map[string]int{"first": -1, "last": 1}
	slices.SortStableFunc(list, func(a, b scenario) int { return order[a.steps[0].text] - order[b.steps[0].text] })
	return shared, list, nil
}

// orphans is an error if a transcript has no scenario: nothing compares it.
func orphans(folder string) error {
	transcripts, err := filepath.Glob(filepath.Join(folder, "transcripts/*.txt"))
	for _, file := range transcripts {
		if _, missing := os.Stat(filepath.Join(folder, "scenarios", filepath.Base(file))); missing != nil {
			err = errors.Join(err, fmt.Errorf("%s has no scenario: write one, or remove it", file))
		}
	}
	return err
}

// read reads the steps of a file, and adds the directives that it defines.
func read(file string, known map[string]directive) ([]*step, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	steps := parse(file, string(text))
	if len(steps) == 0 {
		return nil, fmt.Errorf("%s has no steps", file)
	}
	return steps, check(steps, known)
}

// parse makes a tree of the lines: a line belongs to the nearest one above it that is indented less.
func parse(file, text string) []*step {
	type level struct {
		indent int
		*step
	}
	open, n := []level{{-1, &step{}}}, 0
	for line := range strings.Lines(text) {
		n++
		s := &step{file: file, line: n, text: strings.TrimSpace(line)}
		if s.text == "" || strings.HasPrefix(s.text, "//") {
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		for open[len(open)-1].indent >= indent {
			open = open[:len(open)-1]
		}
		over := open[len(open)-1].step
		if row, is := strings.CutPrefix(s.text+" ", "- "); is {
			over.rows = append(over.rows, strings.TrimSpace(row))
			continue
		}
		if head, do, found := strings.Cut(s.text, " -> "); found && strings.HasPrefix(head, "each ") {
			s.text, s.under = head, []*step{{file: file, line: n, text: do}}
		}
		over.under = append(over.under, s)
		open = append(open, level{indent, s})
	}
	return open[0].under
}

// isRequest matches NAME METHOD TARGET. Variables may stand for each.
var isRequest = regexp.MustCompile(`^\S+ ([A-Z]+|\$\{\S+\}) \S`)

// check finds steps that are neither directives nor requests, and blocks without steps, before anything is played.
func check(steps []*step, known map[string]directive) error {
	for _, s := range steps {
		word, text, _ := strings.Cut(s.text, " ")
		d, found := known[word]
		switch {
		case !found && !isRequest.MatchString(s.text):
			return s.failf("unknown directive %q, and no request, NAME METHOD TARGET", word)
		case d.block && len(s.under) == 0:
			return s.failf("no steps are indented under it")
		case len(s.rows) > 0 && word != "each":
			return s.failf("only each has rows that begin with a dash")
		case d.block:
			if err := check(s.under, known); err != nil {
				return err
			}
		}
		if word == "define" {
			name, _, _ := strings.Cut(text, " ")
			known[name] = directive{}
		}
	}
	return nil
}

// block is the text with the lines under it.
func (s *step) block() string {
	lines := []string{s.text}
	for _, u := range s.under {
		lines = append(lines, u.block())
	}
	return strings.Join(lines, "\n")
}
