// Package optionfile reads a program's options from a YAML file.
//
// The guarantee: the options are exactly what the file says. An unknown key, a repeated key, and a value of the wrong
// kind are problems that name the file, the line and the nearest key. They never show a value, which may be a secret.
// Aliases and merges are refused, so that no file is larger than it looks.
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

	"go.yaml.in/yaml/v3"

	"github.com/fencegate/fencegate/internal/regular"
)

// MaxBytes bounds a file.
const MaxBytes = 1 << 20

// Kind is the type of an option's value, by its name in pflag.
type Kind string

// The kinds. A List also accepts one text.
const (
	Text     Kind = "string"
	Bool     Kind = "bool"
	Number   Kind = "int"
	Duration Kind = "duration"
	List     Kind = "list"
)

// Value is an option's value, as written in the file: one text, or each of a [List].
type Value struct {
	Texts []string
	Line  int // of the key
}

// File is the content of a file.
type File struct {
	Path     string
	Values   map[string]Value // by key, for example "pg.tls.cert"
	AnyReads bool             // users other than its owner and its group may read it
}

// Problem is an error in a file, with its line.
type Problem struct {
	Path   string
	Line   int // 0: the whole file
	Reason string
}

func (p *Problem) Error() string {
	if p.Line == 0 {
		return p.Path + ": " + p.Reason
	}
	return fmt.Sprintf("%s:%d: %s", p.Path, p.Line, p.Reason)
}

// Problems are all errors in a file, sorted by line.
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

func contents(path string) (text []byte, anyReads bool, err error) {
	if text, err = regular.Read(path, MaxBytes); err != nil {
		return nil, false, errors.Unwrap(err) // without the path, which the problem has
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, false, errors.Unwrap(err)
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

// explain describes a YAML error. The library names the line, and sometimes a word, which may be a secret.
func explain(path string, err error) *Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	switch {
	case errors.Is(err, io.EOF):
		return &Problem{Path: path, Reason: "has no options; where none is meant, write: {}"}
	case strings.HasPrefix(text, "unknown anchor"):
		return &Problem{Path: path, Reason: `a "*" without quotes begins an alias in YAML: write "*=open" or "orders/*" in quotes`}
	}
	p := &Problem{Path: path, Reason: "is not valid YAML"}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, err := fmt.Sscanf(rest, "%d:", &p.Line); err == nil {
			_, text, _ = strings.Cut(rest, ": ")
		}
	}
	switch {
	case strings.Contains(text, "expected alphabetic or numeric character"):
		p.Reason = `a "*" or "&" without quotes begins an alias or an anchor in YAML: put the text in quotes`
	case strings.HasPrefix(text, "did not find expected"), strings.HasPrefix(text, "could not find expected"), strings.HasPrefix(text, "found character that cannot start any token"), strings.HasPrefix(text, "mapping values are not allowed"):
		p.Reason = "is not valid YAML: " + text // the library's own words
	}
	return p
}

// Sorted sorts the problems by line.
func (p Problems) Sorted() Problems {
	slices.SortStableFunc(p, func(a, b *Problem) int { return a.Line - b.Line })
	return p
}
