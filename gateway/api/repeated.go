package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

const (
	// fieldDepth is how deep the fields of a body lie at most: those of a statement, in a
	// list, in an object. What is deeper is a value of the client's own.
	fieldDepth = 3

	whitespace = " \t\r\n" // JSON's
)

// repeated returns a field that an object of the text has twice, "" where none has.
// Readers of JSON differ in which of the two they take, and the decoder would even mix
// them: a second list of statements takes over arguments of the first. The text is one
// JSON value, as the decoder has found.
func repeated(text []byte) string {
	var few [fieldDepth][8]string
	var fields [fieldDepth][]string // of the objects around, the outermost first
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			if depth < fieldDepth {
				fields[depth] = few[depth][:0] //nolint:gosec // depth is below fieldDepth
			}
			depth++
		case '}', ']':
			depth--
		case '"':
			end := closing(text, i)
			if depth <= fieldDepth && bytes.HasPrefix(bytes.TrimLeft(text[end:], whitespace), []byte{':'}) {
				name := unquoted(text[i:end])
				if slices.ContainsFunc(fields[depth-1], func(other string) bool { return strings.EqualFold(name, other) }) { //nolint:gosec // as the decoder compares; a name is inside of an object
					return name
				}
				fields[depth-1] = append(fields[depth-1], name) //nolint:gosec // likewise
			}
			i = end - 1
		}
	}
	return ""
}

// closing is where the string that begins at i has ended.
func closing(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// unquoted is what a JSON string says.
func unquoted(text []byte) (name string) {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1])
	}
	_ = json.Unmarshal(text, &name) // it is one
	return name
}
