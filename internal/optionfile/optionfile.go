// Package optionfile reads a program's options from a YAML file.
//
// The guarantee: what is read is exactly what the file says. A key that nobody knows, one that is
// there twice, and a value of another kind are problems that name the file, the line and the nearest
// key, and never show a value, which may be a secret. Aliases and merges are not read, so that no
// file is larger than it looks.
//
//	file, err := optionfile.Read("fencegate.yaml", map[string]optionfile.Kind{
//		"api.listen":   optionfile.Text,
//		"pg.tls.cert":  optionfile.Text,
//		"redis.nodes":  optionfile.List,
//	})
//
// Sections are the parts of a key before its last dot.
package optionfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// MaxBytes bounds a file.
const MaxBytes = 1 << 20

// Kind is what a value may be.
type Kind int

// The kinds. A List takes one text, too.
const (
	Text Kind = iota
	Bool
	Number
	Duration
	List
)

// Value is an option's value, as the file writes it: one text, or each of a [List].
type Value struct {
	Texts []string
	Line  int // of its key
}

// File is what a file says.
type File struct {
	Path     string
	Values   map[string]Value // by key, such as "pg.tls.cert"
	AnyReads bool             // others than its owner and its group may read it
}

// Problem is what is wrong with a file, and where.
type Problem struct {
	Path   string
	Line   int // 0: of the whole file
	Reason string
}

func (p *Problem) Error() string {
	if p.Line == 0 {
		return p.Path + ": " + p.Reason
	}
	return fmt.Sprintf("%s:%d: %s", p.Path, p.Line, p.Reason)
}

// Problems are all that is wrong with a file, in the order of its lines.
type Problems []*Problem

func (p Problems) Error() string {
	if len(p) == 1 {
		return p[0].Error()
	}
	return fmt.Sprintf("%v (and %d more)", p[0], len(p)-1)
}

// Read reads a file. Its errors are [Problems].
func Read(path string, known map[string]Kind) (*File, error) {
	text, anyReads, err := contents(path)
	if err != nil {
		return nil, Problems{{Path: path, Reason: err.Error()}}
	}
	file, problems := parse(path, text, known)
	if len(problems) > 0 {
		return nil, problems
	}
	file.AnyReads = anyReads
	return file, nil
}

// contents reads a regular file: whoever opens another, such as a pipe, may wait for ever.
func contents(path string) (text []byte, anyReads bool, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, errors.Unwrap(err) // without its path: the problem has it
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, false, errors.Unwrap(err)
	case !info.Mode().IsRegular():
		return nil, false, errors.New("is no regular file")
	}
	text, err = io.ReadAll(io.LimitReader(file, MaxBytes+1))
	switch {
	case err != nil:
		return nil, false, errors.Unwrap(err)
	case len(text) > MaxBytes:
		return nil, false, fmt.Errorf("has more than %d bytes", MaxBytes)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, false, errors.New("is empty; where no option is meant, write: {}")
	case !bytes.HasSuffix(text, []byte("\n")):
		return nil, false, errors.New("its last line has no line break: is the file complete?")
	}
	return text, info.Mode().Perm()&0o004 != 0, nil
}

func parse(path string, text []byte, known map[string]Kind) (*File, Problems) {
	whole := func(reason string) (*File, Problems) { return nil, Problems{{Path: path, Reason: reason}} }
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		return nil, Problems{explain(path, err)}
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return whole("has a second document, behind ---: all options stand in one")
	}
	top := doc.Content[0]
	switch {
	case top.Kind == yaml.ScalarNode && top.Tag == "!!null":
		return whole("has no options; where none is meant, write: {}")
	case top.Kind != yaml.MappingNode:
		return whole("is no mapping of options, such as api: {listen: ...}")
	}
	r := &reader{file: &File{Path: path, Values: map[string]Value{}}, known: known}
	r.section("", top)
	return r.file, r.problems
}

// explain says what is no YAML. The library names the line, and at times a word, which may be a secret.
func explain(path string, err error) *Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	switch {
	case errors.Is(err, io.EOF):
		return &Problem{Path: path, Reason: "has no options; where none is meant, write: {}"}
	case strings.HasPrefix(text, "unknown anchor"):
		return &Problem{Path: path, Reason: `a "*" without quotes begins an alias in YAML: write "*=open" or "orders/*" in quotes`}
	}
	p := &Problem{Path: path, Reason: "is no YAML"}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, err := fmt.Sscanf(rest, "%d:", &p.Line); err == nil {
			_, text, _ = strings.Cut(rest, ": ")
		}
	}
	switch {
	case strings.Contains(text, "expected alphabetic or numeric character"):
		p.Reason = `a "*" or "&" without quotes begins an alias or an anchor in YAML: put the text in quotes`
	case strings.HasPrefix(text, "did not find expected"), strings.HasPrefix(text, "could not find expected"), strings.HasPrefix(text, "found character that cannot start any token"), strings.HasPrefix(text, "mapping values are not allowed"):
		p.Reason = "is no YAML: " + text // the library's own words
	}
	return p
}

// Sorted puts them in the order of their lines.
func (p Problems) Sorted() Problems {
	slices.SortStableFunc(p, func(a, b *Problem) int { return a.Line - b.Line })
	return p
}
