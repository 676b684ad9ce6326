package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text as one line without control sequences: white space and line
// ends become one blank each, and unprintable characters are escaped as in Go,
// for example \x1b. Use it for text that others chose: names, holders, messages.
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
