package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

const (
	// fieldDepth is the greatest depth of a body's fields: those of a statement, in a list, in an object. Anything
	// deeper is a value of the client's.
	fieldDepth = 3

	whitespace = " \t\r\n" // JSON's
)

// repeated returns a field that an object of the text has twice; "" if none. JSON parsers differ in which of the two
// they take, and the decoder even mixes them: a second list of statements inherits arguments of the first. The decoder
// has already found that the text is one JSON value.
func repeated(text []byte) string {
	var few [fieldDepth][8]string
	var fields [fieldDepth][]string // of the enclosing objects, the outermost first
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

// closing returns the end of the string that begins at i.
func closing(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// unquoted returns the value of a JSON string.
func unquoted(text []byte) (name string) {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1])
	}
	_ = json.Unmarshal(text, &name) // it is a valid string
	return name
}
