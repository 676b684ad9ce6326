package pgxsql

import "strings"

// has reports whether text contains an ASCII word, ignoring case.
func has(text, lower string) bool {
	for i := 0; i+len(lower) <= len(text); i++ {
		if text[i]|0x20 == lower[0]|0x20 && strings.EqualFold(text[i:i+len(lower)], lower) {
			return true
		}
	}
	return false
}

// controls reports whether a statement begins or ends a transaction. ROLLBACK TO a savepoint does neither. A text of
// several statements is PostgreSQL's to refuse.
func controls(query string) bool {
	first, rest := word(query)
	switch first {
	case "BEGIN", "START", "COMMIT", "END", "ABORT":
		return true
	case "PREPARE":
		second, _ := word(rest)
		return second == "TRANSACTION"
	case "ROLLBACK":
		for second, rest := word(rest); ; second, rest = word(rest) {
			if second != "WORK" && second != "TRANSACTION" {
				return second != "TO"
			}
		}
	}
	return false
}

// reads reports whether a statement's first word is that of a reading one. If a function in it writes, the outcome of
// an unanswered COMMIT can't be resolved.
func reads(query string) bool {
	switch first, _ := word(query); first {
	case "SELECT", "TABLE", "VALUES", "SHOW":
		return true
	}
	return false
}

// word returns the first word of a statement, in upper case, and the rest.
func word(query string) (first, rest string) {
	for {
		query = strings.TrimLeft(query, " \t\r\n\f\v;(")
		switch {
		case strings.HasPrefix(query, "--"):
			end := strings.IndexAny(query, "\r\n")
			if end < 0 {
				return "", ""
			}
			query = query[end+1:]
		case strings.HasPrefix(query, "/*"):
			query = afterComment(query)
		default:
			end := strings.IndexFunc(query, func(r rune) bool { return (r|0x20 < 'a' || r|0x20 > 'z') && r != '_' })
			if end < 0 {
				end = len(query)
			}
			return strings.ToUpper(query[:end]), query[end:]
		}
	}
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
