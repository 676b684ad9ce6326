package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line is text on one line, in which nothing tells a terminal what to do: blanks
// and ends of lines are one blank each, and what is not printable is written as
// Go does, such as \x1b. For text that others chose: names, holders, messages.
func Line(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if strings.IndexFunc(text, obeyed) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case obeyed(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
		text = text[size:]
	}
	return b.String()
}

func obeyed(r rune) bool { return !unicode.IsPrint(r) }
