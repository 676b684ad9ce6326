package fencedsql

import (
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// refusals maps each command with which a statement may not begin to the reason.
var refusals = map[string]string{
	"begin":     inTransaction,
	"start":     inTransaction,
	"commit":    inTransaction,
	"end":       inTransaction,
	"rollback":  inTransaction,
	"abort":     inTransaction,
	"savepoint": inTransaction,
	"release":   inTransaction,
	"prepare":   "would outlive the request's transaction",
	"reset":     "would take away the settings that carry the grant",
	"discard":   "would take away the settings that carry the grant",
	"copy":      "needs a connection of its own; use the PostgreSQL port",
	"grant":     administers,
	"revoke":    administers,
	"reassign":  administers,
}

// adminObjects are the objects that a statement may not alter, create or drop.
var adminObjects = []string{"role", "user", "group", "database", "system", "default"}

const administers = "administers the server; do that as its administrator, not under a grant"

const inTransaction = "is not allowed: a request is one transaction, which the gateway begins and ends"

// checkCommand refuses statements before they are sent. The error is a [*fence.InvalidError] for the named field. A nil
// error does not mean that a statement is safe; the package comment says what protects.
func checkCommand(field, sql string) error {
	// NUL ends the text in the protocol: PostgreSQL would parse the rest as something else.
	if strings.ContainsRune(sql, 0) {
		return &fence.InvalidError{Field: field, Reason: "contains the control character U+0000"}
	}
	s := scanner{text: sql}
	first := s.next()
	if first.kind == endOfText {
		return &fence.InvalidError{Field: field, Reason: "is empty"}
	}
	if first.kind != plainWord {
		return nil // a parenthesis, or for PostgreSQL to refuse
	}
	if why, no := refusals[first.text]; no {
		return &fence.InvalidError{Field: field, Reason: "begins with " + strings.ToUpper(first.text) + ", which " + why}
	}
	switch first.text {
	case "set":
		return checkSetting(field, &s)
	case "alter", "create", "drop":
		if what := s.next(); what.kind == plainWord && slices.Contains(adminObjects, what.text) {
			return &fence.InvalidError{Field: field, Reason: "begins with " + strings.ToUpper(first.text+" "+what.text) + ", which " + administers}
		}
	}
	return nil
}

// checkSetting parses what follows SET.
func checkSetting(field string, s *scanner) error {
	word := s.next()
	if word.is("session") || word.is("local") {
		scope := word
		word = s.next()
		if scope.is("session") && word.is("authorization") {
			return setRefused(field, "SESSION AUTHORIZATION")
		}
	}
	if word.kind == escapedWord {
		return &fence.InvalidError{Field: field, Reason: `sets a name in U&"…" form; write it plainly`}
	}
	name := word.text
	for s.dot() {
		part := s.next()
		if part.kind == escapedWord {
			return &fence.InvalidError{Field: field, Reason: `sets a name in U&"…" form; write it plainly`}
		}
		name += "." + part.text
	}
	name = strings.ToLower(name) // settings' names are case-insensitive, even if quoted
	switch {
	case slices.Contains([]string{"role", "session_authorization"}, name):
		return setRefused(field, strings.ToUpper(name))
	case strings.HasPrefix(name, "fence."):
		return setRefused(field, name)
	case name == "client_encoding", word.is("names") && name == "names":
		return &fence.InvalidError{Field: field, Reason: "sets the client's encoding; an answer is JSON, which is UTF-8"}
	}
	return nil
}

func setRefused(field, name string) error {
	return &fence.InvalidError{Field: field, Reason: "sets " + name + ", which the gateway does itself: the grant comes in the request's headers"}
}

type wordKind int

const (
	endOfText wordKind = iota
	plainWord          // folded to lower case, as PostgreSQL does
	quotedWord
	escapedWord // U&"…"
	other       // any other byte
)

type word struct {
	kind wordKind
	text string
}

func (w word) is(keyword string) bool { return w.kind == plainWord && w.text == keyword }

// scanner reads the first words of a command by the rules of PostgreSQL's own
// scanner (scan.l): white space, -- and nested /* */ comments.
type scanner struct {
	text string
	pos  int
}

func (s *scanner) peek(i int) byte {
	if s.pos+i < len(s.text) {
		return s.text[s.pos+i]
	}
	return 0
}

// skip skips white space and comments. With empty it also skips the semicolons of empty statements, which PostgreSQL
// drops before it counts commands.
func (s *scanner) skip(empty bool) {
	for s.pos < len(s.text) {
		switch c := s.peek(0); {
		case strings.IndexByte(" \t\n\r\f\v", c) >= 0, c == ';' && empty:
			s.pos++
		case c == '-' && s.peek(1) == '-':
			n := strings.IndexAny(s.text[s.pos:], "\n\r")
			if n < 0 {
				n = len(s.text) - s.pos
			}
			s.pos += n
		case c == '/' && s.peek(1) == '*':
			s.comment()
		default:
			return
		}
	}
}

func (s *scanner) comment() {
	for depth := 0; s.pos < len(s.text); {
		switch {
		case s.peek(0) == '/' && s.peek(1) == '*':
			depth++
			s.pos += 2
		case s.peek(0) == '*' && s.peek(1) == '/':
			depth--
			s.pos += 2
		default:
			s.pos++
		}
		if depth == 0 {
			return
		}
	}
}

func (s *scanner) next() word {
	s.skip(s.pos == 0)
	c := s.peek(0)
	switch {
	case s.pos >= len(s.text):
		return word{kind: endOfText}
	case (c == 'u' || c == 'U') && s.peek(1) == '&' && s.peek(2) == '"':
		return word{kind: escapedWord}
	case c == '"':
		return s.quoted()
	case !wordStart(c):
		s.pos++
		return word{kind: other, text: string(c)}
	}
	start := s.pos
	for s.pos < len(s.text) && (wordStart(s.peek(0)) || s.peek(0) == '$' || '0' <= s.peek(0) && s.peek(0) <= '9') {
		s.pos++
	}
	return word{kind: plainWord, text: strings.ToLower(s.text[start:s.pos])}
}

func (s *scanner) quoted() word {
	var b strings.Builder
	for s.pos++; s.pos < len(s.text); s.pos++ {
		if s.peek(0) == '"' {
			if s.peek(1) != '"' {
				s.pos++
				break
			}
			s.pos++
		}
		b.WriteByte(s.peek(0))
	}
	return word{kind: quotedWord, text: b.String()}
}

// dot skips a dot between two parts of a name.
func (s *scanner) dot() bool {
	s.skip(false)
	if s.peek(0) != '.' {
		return false
	}
	s.pos++
	return true
}

func wordStart(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= 0x80
}
