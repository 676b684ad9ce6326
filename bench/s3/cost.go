package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// spent is the processor time of a server, of its PostgreSQL, and of the clients, which are this process.
type spent struct{ server, postgres, clients time.Duration }

// spentBy is a contender's processor time so far.
func (w *world) spentBy(one *contender) (s spent, err error) {
	if s.server, err = processorTime(one.pid); err != nil {
		return s, err
	}
	if s.clients, err = processorTime(os.Getpid()); err != nil || one.name != "ours" {
		return s, err
	}
	backends, err := childrenOf(w.db.Pid())
	if err != nil {
		return s, err
	}
	for _, pid := range backends {
		if t, err := processorTime(pid); err == nil { // otherwise the process has just ended
			s.postgres += t
		}
	}
	return s, nil
}

// since is the time per operation, for n operations.
func (s spent) since(before spent, n int64) spent {
	each := func(now, before time.Duration) time.Duration { return (now - before) / time.Duration(n) }
	return spent{each(s.server, before.server), each(s.postgres, before.postgres), each(s.clients, before.clients)}
}

func (s spent) String() string {
	return fmt.Sprintf("processor time of each: server %d µs, PostgreSQL %d µs, client %d µs", s.server.Microseconds(), s.postgres.Microseconds(), s.clients.Microseconds())
}

// processorTime is the user and system time of all threads of a process.
func processorTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	const wholeProcess = 2 // the clock id: ^pid, and the number of the process's clock
	if err := unix.ClockGettime(int32(^pid<<3|wholeProcess), &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

func childrenOf(pid int) ([]int, error) {
	id := strconv.Itoa(pid)
	data, err := os.ReadFile(filepath.Join("/proc", id, "task", id, "children"))
	if err != nil {
		return nil, err
	}
	var all []int
	for text := range strings.FieldsSeq(string(data)) {
		child, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		all = append(all, child)
	}
	return all, nil
}

// profiled records the server's CPU profile from its start to its end, if a folder for it is given.
func profiled(name string) (stop func(), err error) {
	folder := os.Getenv(envProfile)
	if folder == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(folder, name+".pprof")) //nolint:gosec // the user names the folder
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }, nil
}
