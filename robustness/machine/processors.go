package machine

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/fencegate/fencegate/robustness/history"
)

// usage is how the processors were used, in nanoseconds of all of them since the machine's start.
type usage struct {
	at, idle int64
	number   int   // of processors
	own      int64 // by this process and its descendants, the ended ones included
}

// tick is the unit of /proc/stat and /proc/PID/stat.
const tick = second / 100

// since is the part of the processor time that went to others: it was neither idle nor the run's own. What a hypervisor
// takes is neither.
func (u usage) since(before usage) float64 {
	all := float64(u.at-before.at) * float64(u.number)
	return max(0, 1-float64(u.idle-before.idle)/all-float64(u.own-before.own)/all)
}

func processors() (u usage, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, err
	}
	u.at = history.Now()
	u.number = bytes.Count(text, []byte("\ncpu")) // the first line is their sum
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line) // cpu user nice system idle iowait …
	if len(fields) < 6 || u.number == 0 {
		return u, fmt.Errorf("an unknown form of /proc/stat: %q", line)
	}
	for _, field := range fields[4:6] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return u, fmt.Errorf("/proc/stat: %w", err)
		}
		u.idle += n * tick
	}
	u.own, err = family()
	return u, err
}

// family is the processor time of this process and its descendants.
func family() (total int64, err error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	type process struct {
		parent int
		used   int64
	}
	all := map[int]process{}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + name.Name() + "/stat")
		if err != nil {
			continue // it has ended; its parent has its time
		}
		_, rest, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" ")) // a name may hold anything
		fields := bytes.Fields(rest)
		if len(fields) < 15 {
			return 0, fmt.Errorf("an unknown form of /proc/PID/stat: %q", text)
		}
		var p process
		p.parent, _ = strconv.Atoi(string(fields[1]))
		for _, field := range fields[11:15] { // user and system time, its own and that of its children that have ended
			n, _ := strconv.ParseInt(string(field), 10, 64)
			p.used += n * tick
		}
		all[pid] = p
	}
	self := os.Getpid()
	for pid, p := range all {
		at, ours := pid, pid == self
		for n := 0; !ours && at > 1 && n < 64; n++ {
			at = all[at].parent
			ours = at == self
		}
		if ours {
			total += p.used
		}
	}
	return total, nil
}
