package terminal

import "testing"

func TestNoTextTellsATerminalWhatToDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                            "",
		"worker A":                    "worker A",
		"größer, 大きい, ✓":              "größer, 大きい, ✓",
		" two\n lines\tand a tab ":    "two lines and a tab",
		"\x1b]0;title\x07 \x1b[2Jx":   `\x1b]0;title\a \x1b[2Jx`,
		"right to left \u202egnp.exe": `right to left \u202egnp.exe`,
		"c1 \u009b2J del \x7f":        `c1 \u009b2J del \x7f`,
		"no UTF-8 \xff\xfe, \ufffd":   `no UTF-8 \xff\xfe, ` + "\ufffd",
		`a backslash \ stays`:         `a backslash \ stays`,
	} {
		if got := Line(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
