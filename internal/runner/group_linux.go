package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// onlyZombies reports whether only zombies remain of a process group. Their parent may never wait for them, for example
// the first process of a container.
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
		if fields := statOf(b); len(fields) > 2 && string(fields[2]) == want && !isOver(fields) {
			return false
		}
	}
	return true
}

// isZombie reports whether a process has ended, and has not been waited for.
func isZombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && isOver(statOf(b))
}

// statOf returns STATE PARENT GROUP … of /proc/PID/stat. PID (NAME) comes before them, and NAME may hold anything.
func statOf(b []byte) [][]byte { return bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) }

// isOver reports whether all threads have ended. A process whose first thread has ended is a zombie, too, while others go
// on.
func isOver(stat [][]byte) bool {
	const threads = 17 // the 20th of proc_pid_stat(5)
	return len(stat) > threads && (string(stat[0]) == "X" || string(stat[0]) == "Z" && len(stat[threads]) == 1 && stat[threads][0] <= '1')
}
