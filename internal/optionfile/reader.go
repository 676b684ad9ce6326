package optionfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// reader walks the YAML nodes itself: a decoder reports no line for a value of the wrong kind, and follows aliases.
type reader struct {
	file     *File
	known    map[string]Kind
	problems Problems
}

func (r *reader) problemf(n *yaml.Node, format string, args ...any) {
	r.problems = append(r.problems, &Problem{Path: r.file.Path, Line: n.Line, Reason: fmt.Sprintf(format, args...)})
}

// maxProblems bounds the problems reported for one file, and the time that it takes.
const maxProblems = 50

// section reads a mapping whose keys begin with within: "" or "pg.tls.".
func (r *reader) section(within string, n *yaml.Node) {
	if !r.plain(n) {
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch {
		case len(r.problems) >= maxProblems:
			return
		case !r.plain(name):
			continue
		case name.Kind != yaml.ScalarNode:
			r.problemf(name, "a key is one word")
			continue
		}
		if before, twice := seen[name.Value]; twice {
			r.problemf(name, "%s is repeated, also in line %d", show(within+name.Value), before)
			continue
		}
		seen[name.Value] = name.Line
		r.entry(within+name.Value, name, value)
	}
}

func (r *reader) entry(key string, name, value *yaml.Node) {
	kind, isOption := r.known[key]
	switch isSection := r.isSection(key); {
	case isOption:
		if texts, ok := r.value(key, kind, value); ok {
			r.file.Values[key] = Value{Texts: texts, Line: name.Line}
		}
	case isSection && value.Kind == yaml.MappingNode:
		r.section(key+".", value)
	case isSection && value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		r.plain(value) // all of its keys are commented out
	case isSection && value.Kind == yaml.AliasNode:
		r.plain(value)
	case isSection:
		r.problemf(value, "%s is a section: a mapping is needed", show(key))
	default:
		r.problemf(name, "unknown key %s%s", show(key), r.suggest(key))
	}
}

func (r *reader) isSection(key string) bool {
	for known := range r.known {
		if strings.HasPrefix(known, key+".") {
			return true
		}
	}
	return false
}

// suggest returns a hint with the nearest key or section.
func (r *reader) suggest(key string) string {
	var names []string
	for known := range r.known {
		names = append(names, known)
		for section := known; strings.Contains(section, "."); {
			section = section[:strings.LastIndexByte(section, '.')]
			names = append(names, section)
		}
	}
	if near := Nearest(key, names); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// value reads an option's value.
func (r *reader) value(key string, kind Kind, n *yaml.Node) (texts []string, ok bool) {
	if !r.plain(n) {
		return nil, false
	}
	if kind == List && n.Kind == yaml.SequenceNode {
		texts, ok = []string{}, true
		for _, item := range n.Content {
			text, good := r.scalar(key, Text, item)
			texts, ok = append(texts, text), ok && good
		}
		return texts, ok
	}
	if kind == List {
		kind = Text
	}
	text, ok := r.scalar(key, kind, n)
	return []string{text}, ok
}

func (r *reader) scalar(key string, kind Kind, n *yaml.Node) (string, bool) {
	if !r.plain(n) {
		return "", false
	}
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	problem := ""
	switch {
	case n.Kind != yaml.ScalarNode:
		problem = "one value is needed, not a list or a mapping"
	case n.Tag == "!!null" && !quoted:
		problem = "has no value: give it one, or leave the key away"
	case kind == Text && n.Tag != "!!str" && n.Tag != "!!timestamp":
		problem = "a text is needed: put it in quotes"
	case kind == Bool && (n.Tag != "!!bool" || n.Value != "true" && n.Value != "false"):
		problem = "true or false is needed"
	case kind == Number:
		if _, err := strconv.Atoi(n.Value); n.Tag != "!!int" || err != nil {
			problem = "a whole number is needed"
		}
	case kind == Duration:
		if _, err := time.ParseDuration(n.Value); n.Tag != "!!str" && n.Tag != "!!int" || err != nil {
			problem = "a duration is needed, with its unit, such as 30s or 12h"
		}
	}
	if problem != "" {
		r.problemf(n, "%s: %s", show(key), problem)
		return "", false
	}
	return n.Value, true
}

// plain refuses YAML features that make a file mean more than it shows.
func (r *reader) plain(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		r.problemf(n, `aliases are not read: write the value out (a text that begins with "*" needs quotes)`)
	case n.Tag == "!!merge":
		r.problemf(n, "merges (<<) are not read: write the keys out")
	case n.Anchor != "" || n.Style&yaml.TaggedStyle != 0:
		r.problemf(n, `anchors and tags are not read (a text that begins with "&" or "!" needs quotes)`)
	default:
		return true
	}
	return false
}

// show shortens a key for a message.
func show(key string) string {
	const most = 60
	if runes := []rune(key); len(runes) > most {
		key = string(runes[:most]) + "…"
	}
	for _, c := range key {
		if !strings.ContainsRune("._-", c) && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '…' {
			return strconv.Quote(key)
		}
	}
	return key
}

// Nearest returns the name that a misspelled name most likely means; "" if none is near.
func Nearest(name string, names []string) string {
	names = slices.Sorted(slices.Values(names))
	nearest, least := "", 1+max(min(2, len(name)/2), len(name)/3) // of three letters, one may differ
	if len(name) > 200 {
		return "" // no typing error
	}
	for _, other := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d < least {
			nearest, least = other, d
		}
	}
	return nearest
}

// distance is how many bytes must be inserted, deleted, replaced
// or swapped with their neighbour (optimal string alignment).
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(last[j]+cost, last[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, last = last, next
	}
	return last[len(b)]
}
