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
	number   int                 // of processors
	own      map[int]processTime // of this process and its descendants
}

// processTime is the processor time of a process, and that of its children that have ended, as far as it has waited
// for them.
type processTime struct {
	parent       int
	used, waited int64
}

// tick is the unit of /proc/stat and /proc/PID/stat.
const tick = second / 100

// since is the part of the processor time that went to others: it was neither idle nor the run's own. What a hypervisor
// takes is neither.
func (u usage) since(before usage) float64 {
	all := float64(u.at-before.at) * float64(u.number)
	return max(0, 1-float64(u.idle-before.idle)/all-float64(ran(before.own, u.own))/all)
}

// ran is what the processes used between two moments. What a child had used before it ended comes to its parent then;
// if that was killed, too, to nobody.
func ran(before, after map[int]processTime) (total int64) {
	waited := map[int]int64{}
	for pid, p := range after {
		waited[pid] = p.waited - before[pid].waited
	}
	for pid, p := range before {
		if _, runs := after[pid]; !runs {
			waited[p.parent] -= p.used + p.waited
		}
	}
	for pid, p := range after {
		total += max(0, p.used-before[pid].used) + max(0, waited[pid])
	}
	return total
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

// family is the processor time of this process and each of its descendants.
func family() (map[int]processTime, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	all := map[int]processTime{}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + name.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" ")) // a name may hold anything
		fields := bytes.Fields(rest)
		if len(fields) < 15 {
			return nil, fmt.Errorf("an unknown form of /proc/PID/stat: %q", text)
		}
		var p processTime
		p.parent, _ = strconv.Atoi(string(fields[1]))
		for i, field := range fields[11:15] { // user and system time, its own and that of its children
			n, _ := strconv.ParseInt(string(field), 10, 64)
			if i < 2 {
				p.used += n * tick
			} else {
				p.waited += n * tick
			}
		}
		all[pid] = p
	}
	self, own := os.Getpid(), map[int]processTime{}
	for pid, p := range all {
		at, ours := pid, pid == self
		for n := 0; !ours && at > 1 && n < 64; n++ {
			at = all[at].parent
			ours = at == self
		}
		if ours {
			own[pid] = p
		}
	}
	return own, nil
}
