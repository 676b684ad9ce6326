package main

import (
	"errors"
	"fmt"
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

// step is a line of a scenario, with the lines that are indented under it.
type step struct {
	file  string
	line  int
	text  string
	under []*step
}

func (s *step) String() string { return fmt.Sprintf("%s:%d: %s", s.file, s.line, s.text) }

func (s *step) failf(format string, args ...any) error {
	return &failure{s.String(), fmt.Errorf(format, args...)}
}

// load reads the scenarios whose names begin with a text, in the order in which they are played: by name, but first those
// that begin with "first", and last those that begin with "last". A transcript without a scenario is an error.
func load(folder, only string) (list []scenario, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "scenarios/*.txt"))
	if err != nil {
		return nil, err
	}
	transcripts, err := filepath.Glob(filepath.Join(folder, "transcripts/*.txt"))
	for _, file := range transcripts {
		if !slices.Contains(files, filepath.Join(folder, "scenarios", filepath.Base(file))) {
			err = errors.Join(err, fmt.Errorf("%s has no scenario: write one, or remove it", file))
		}
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if name == "shared" || !strings.HasPrefix(name, only) {
			continue
		}
		steps, fails := read(file)
		list, err = append(list, scenario{name, steps}), errors.Join(err, fails)
	}
	order := map[string]int{"first": -1, "last": 1}
	slices.SortStableFunc(list, func(a, b scenario) int { return order[a.begins()] - order[b.begins()] })
	if len(list) == 0 {
		err = errors.Join(err, fmt.Errorf("no scenario's name begins with %q", only))
	}
	return list, err
}

func (s scenario) begins() string {
	if len(s.steps) == 0 {
		return ""
	}
	return s.steps[0].text
}

// read reads the steps of a file.
func read(file string) ([]*step, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parse(file, string(text))
}

// parse makes a tree of the lines, and checks it: a line belongs to the nearest one above it that is indented less.
func parse(file, text string) ([]*step, error) {
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
		over.under = append(over.under, s)
		open = append(open, level{indent, s})
	}
	steps := open[0].under
	return steps, check(steps, directives())
}

// isRequest matches NAME METHOD TARGET. Variables may stand for each.
var isRequest = regexp.MustCompile(`^\S+ ([A-Z]+|\$\{\S+\}) \S`)

// check finds steps that are neither directives nor requests, and blocks without steps, before anything is played.
func check(steps []*step, known map[string]directive) error {
	for _, s := range steps {
		word, _, _ := strings.Cut(s.text, " ")
		d, found := known[word]
		under := s.under
		if word == "each" {
			_, under = s.table()
		}
		switch {
		case !found && !isRequest.MatchString(s.text):
			return s.failf("unknown directive %q, and no request, NAME METHOD TARGET", word)
		case d.block && len(under) == 0:
			return s.failf("no steps are indented under it")
		case d.block:
			if err := check(under, known); err != nil {
				return err
			}
		}
	}
	return nil
}

// table returns the rows under an each, which begin with a dash, and the steps after them.
func (s *step) table() (rows []string, steps []*step) {
	for i, u := range s.under {
		row, is := strings.CutPrefix(u.text+" ", "- ")
		if !is {
			return rows, s.under[i:]
		}
		rows = append(rows, strings.TrimSpace(row))
	}
	return rows, nil
}

// block is the text with the lines under it.
func (s *step) block() string {
	text := s.text
	for _, u := range s.under {
		text += "\n" + u.block()
	}
	return text
}
