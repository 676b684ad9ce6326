// Package terminal distinguishes terminals from files, pipes and /dev/null.
package terminal

import (
	"os"

	"golang.org/x/term"
)

// Is reports whether v is an open file that is a terminal.
func Is(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
