//go:build unix

package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// InForeground reports whether v is a terminal whose foreground process group is this process's: what its keys send,
// such as INT by Ctrl-C, reaches every process of that group.
func InForeground(v any) bool {
	f, ok := v.(*os.File)
	if !ok {
		return false
	}
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
