//go:build unix

package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
)

// Open makes a process's client from the setup of the run and the addresses through which it reaches the servers.
type Open func(setup []byte, addrs []string) (Client, error)

// asProcess makes a test binary play a part of a run, which is the variable's value, instead of its tests.
const asProcess = "FENCEGATE_TORTURE"

var canPlay bool

// Main plays the part of a process that a run has started, and does not return there. TestMain calls it before
// anything else.
func Main(open Open) {
	canPlay = true
	text := os.Getenv(asProcess)
	if text == "" {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	ignored := append(testenv.LeakOptions(), goleak.IgnoreCurrent())
	err := playPart(ctx, open, text)
	if err == nil {
		err = goleak.Find(ignored...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func playPart(ctx context.Context, open Open, text string) (err error) {
	var p player
	if err := json.Unmarshal([]byte(text), &p.part); err != nil {
		return err
	}
	clients := []*Client{&p.Client, &p.second}
	if p.Role != acquires {
		clients = clients[:1]
	}
	for _, c := range clients {
		if *c, err = open(p.Setup, p.Addrs); err != nil {
			return err
		}
	}
	p.timeline = shared()
	out := make(chan event)
	written := make(chan error, 1)
	go func() {
		to, failed := json.NewEncoder(os.Stdout), error(nil)
		for e := range out {
			failed = errors.Join(failed, to.Encode(e))
		}
		written <- failed
	}()
	p.report = func(e event) { out <- e }
	err = p.play(ctx)
	close(out)
	err = errors.Join(err, <-written)
	for _, c := range clients {
		err = errors.Join(err, c.Close())
		if c.After != nil {
			c.After()
		}
	}
	return err
}

// timeline places this process's moments on a clock.
type timeline struct {
	origin time.Time
	was    time.Duration // on the clock, at the origin
	late   time.Duration // by which that may be too early
}

// shared is the timeline of the machine's monotonic clock, which all processes share.
func shared() timeline {
	for {
		before, origin, after := monotonic(), time.Now(), monotonic()
		if after-before < 20*time.Microsecond { // not stopped in between
			return timeline{origin, before, after - before}
		}
	}
}

func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// at is a moment on the clock, or a little earlier.
func (l timeline) at(t time.Time) time.Duration { return l.was + t.Sub(l.origin) }

// after is a moment on the clock, or a little later.
func (l timeline) after(t time.Time) time.Duration { return l.at(t) + l.late }

// Process is a process of a run.
type Process struct {
	Stop, Cont func() error // as SIGSTOP and SIGCONT do
	End        func() error // lets it finish what it does; the error is its own
}

// Start starts a process that does what Client.First does, and no more.
func Start(t testing.TB, setup any, addrs []string) Process {
	t.Helper()
	return startProcess(t, part{Setup: asJSON(t, setup), Addrs: addrs, Role: first}, nil)
}

func asJSON(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// startProcess starts a copy of this test binary that plays a part.
func startProcess(t testing.TB, p part, take func(event)) Process {
	t.Helper()
	if !canPlay {
		t.Fatal("TestMain does not call torture.Main")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this program, which kills it if the test ends before it
	cmd.Env = append(os.Environ(), asProcess+"="+string(asJSON(t, p)))
	var said strings.Builder
	cmd.Stderr = &said
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if err := child.Adopt(pid, syscall.SIGKILL); err != nil { // a stopped one would outlive the test
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		var err error
		for from := json.NewDecoder(output); err == nil; {
			var e event
			if err = from.Decode(&e); err == nil {
				take(e)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if err = errors.Join(err, cmd.Wait()); err != nil {
			err = fmt.Errorf("a process ended with %w: %s", err, said.String())
		}
		child.Disown(pid)
		ended <- err
	}()
	signal := func(s syscall.Signal) func() error { return func() error { return cmd.Process.Signal(s) } }
	return Process{Stop: signal(syscall.SIGSTOP), Cont: signal(syscall.SIGCONT), End: func() error {
		_ = input.Close()
		hangs := time.AfterFunc(2*inTheEnd, func() { _ = cmd.Process.Signal(syscall.SIGABRT) }) // it shows where
		defer hangs.Stop()
		return <-ended
	}}
}
