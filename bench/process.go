package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
)

// serverConfig is the variable that makes this program one of the servers that it measures, in a process of its own. It
// holds a server as JSON, with its secrets.
const serverConfig = "BENCH_SERVER"

type server struct {
	Kind, Addr string

	Control, Upstream string // of a relay

	Folder, Access, Secret, Postgres, Key string // of an S3 server
}

// spawn runs the server until the stack closes, and returns when look succeeds. There is one of a kind on a stack.
func (s server) spawn(ctx context.Context, on *stack.Stack, look func(context.Context) error) *child.Process {
	config := run.Must(json.Marshal(s))
	spec := child.Spec{Path: run.Must(os.Executable()), Env: append(os.Environ(), serverConfig+"="+string(config)), StopSignal: syscall.SIGINT}
	return run.Must(on.Run(ctx, "server-"+s.Kind, spec, look))
}

// beServer runs a server until it is interrupted.
func beServer(config string) (err error) {
	defer run.Catch(&err)
	var s server
	run.Check(json.Unmarshal([]byte(config), &s))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	map[string]func(server, context.Context){"pgwire": server.pgwire, "iocopy": server.ioCopy, "s3": server.s3, "versitygw": server.versitygw}[s.Kind](s, ctx)
	return nil
}

// cost is the meter of the processor time of processes. Off Linux there is none.
func cost(of string, total func() time.Duration) []run.Meter {
	if runtime.GOOS != "linux" {
		return nil
	}
	return []run.Meter{{Name: "µs of " + of, Read: func(context.Context) float64 { return float64(total()) / float64(time.Microsecond) }}}
}

// processorTime is the user and system time of all threads of a process.
func processorTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	const wholeProcess = 2 // the clock id: ^pid, and the number of the process's clock
	err := unix.ClockGettime(int32(^pid<<3|wholeProcess), &t)
	return time.Duration(t.Nano()), err
}

func spentBy(pids ...int) (sum time.Duration) {
	for _, pid := range pids {
		sum += run.Must(processorTime(pid))
	}
	return sum
}

// spentByTree is that of a process and its children, also of those that have ended.
func spentByTree(pid int) time.Duration {
	folder, sum := fmt.Sprintf("/proc/%d", pid), spentBy(pid)
	for child := range strings.FieldsSeq(string(run.Must(os.ReadFile(fmt.Sprintf("%s/task/%d/children", folder, pid))))) {
		if t, err := processorTime(run.Must(strconv.Atoi(child))); err == nil { // otherwise it has just ended
			sum += t
		}
	}
	stat := run.Must(os.ReadFile(folder + "/stat"))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // a program's name may hold anything
	for _, ticks := range fields[13:15] {                                     // cutime and cstime, see proc(5); USER_HZ is 100
		sum += time.Duration(run.Must(strconv.Atoi(ticks))) * 10 * time.Millisecond
	}
	return sum
}

// memory is a process's resident memory in bytes: now (VmRSS), or at the most (VmHWM).
func memory(pid int, field string) int64 {
	_, rest, _ := strings.Cut(string(run.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))), field+":")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return run.Must(strconv.ParseInt(kib, 10, 64)) << 10
}
