package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// onlyZombies reports whether all that is left of a process group has ended, and
// waits only for a parent that does not look: the first process of a container at times.
func onlyZombies(group int) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return false
	}
	want := strconv.Itoa(group)
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it is gone
		}
		// PID (NAME) STATE PARENT GROUP …; the name may hold anything.
		fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(fields) > 2 && string(fields[2]) == want && string(fields[0]) != "Z" && string(fields[0]) != "X" {
			return false
		}
	}
	return true
}
