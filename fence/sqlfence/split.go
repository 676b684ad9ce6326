package sqlfence

import (
	"iter"
	"strings"
)

// statements yields the statements of a text, as PostgreSQL separates them. With escapes, a backslash escapes in every
// string, as with standard_conforming_strings = off.
func statements(text string, escapes bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			one, rest, more := cut(text, escapes)
			if !yield(one) || !more {
				return
			}
			text = rest
		}
	}
}

// cut cuts a text behind its first statement. A semicolon separates statements unless it is in parentheses, as in
// CREATE RULE, or in the body of a routine.
func cut(text string, escapes bool) (one, rest string, more bool) {
	parens, body := 0, 0
	first, last := "", ""
	for at := 0; at < len(text); {
		t := token(text[at:], escapes)
		switch {
		case t == "(":
			parens++
		case t == ")":
			parens--
		case t == ";" && parens <= 0 && body <= 0:
			return text[:at], text[at+1:], true
		case startsWord(t[0]):
			if first == "" {
				first = t
			}
			body += nests(body, first, last, t)
			last = t
		}
		at += len(t)
	}
	return text, "", false
}

// nests returns by how much a word changes the depth in a routine's body, which is BEGIN ATOMIC … END and may contain
// CASE … END.
func nests(body int, first, last, word string) int {
	switch {
	case body == 0 && strings.EqualFold(word, "ATOMIC") && strings.EqualFold(last, "BEGIN") && strings.EqualFold(first, "CREATE"),
		body > 0 && strings.EqualFold(word, "CASE"):
		return 1
	case body > 0 && strings.EqualFold(word, "END"):
		return -1
	}
	return 0
}

// token returns what a text, which is not empty, begins with: a comment, a string, a name, a word or one character.
func token(text string, escapes bool) string {
	switch c := text[0]; {
	case strings.HasPrefix(text, "--"):
		return text[:len(text)-len(afterLine(text))]
	case strings.HasPrefix(text, "/*"):
		return text[:len(text)-len(afterComment(text))]
	case c == '\'':
		return quoted(text, escapes)
	case c == '"':
		return quoted(text, false)
	case c == '$':
		return dollarQuoted(text)
	case startsWord(c):
		end := 1
		for end < len(text) && inWord(text[end]) {
			end++
		}
		if end == 1 && c|0x20 == 'e' && strings.HasPrefix(text[1:], "'") {
			return text[:1+len(quoted(text[1:], true))]
		}
		return text[:end]
	}
	return text[:1]
}

// quoted returns the string or name in quotes that a text begins with. A doubled quote is part of it.
func quoted(text string, escapes bool) string {
	for i := 1; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\':
			i++
		case text[i] != text[0]:
		case i+1 < len(text) && text[i+1] == text[0]:
			i++
		default:
			return text[:i+1]
		}
	}
	return text
}

// dollarQuoted returns the string that a text begins with, $$…$$ or $tag$…$tag$, or else the dollar sign alone.
func dollarQuoted(text string) string {
	end := 1
	for end < len(text) && text[end] != '$' && inWord(text[end]) && (end > 1 || startsWord(text[end])) {
		end++
	}
	if end == len(text) || text[end] != '$' {
		return text[:1]
	}
	tag := text[:end+1]
	if length := strings.Index(text[len(tag):], tag); length >= 0 {
		return text[:length+2*len(tag)]
	}
	return text
}

func startsWord(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= 0x80 }

func inWord(c byte) bool { return startsWord(c) || c >= '0' && c <= '9' || c == '$' }

// afterLine cuts a comment that ends with its line.
func afterLine(query string) string {
	if end := strings.IndexAny(query, "\r\n"); end >= 0 {
		return query[end+1:]
	}
	return ""
}

// afterComment cuts a comment, which may contain nested ones.
func afterComment(query string) string {
	depth := 0
	for i := 0; i+1 < len(query); i++ {
		switch query[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return query[i+1:]
			}
		}
	}
	return ""
}
