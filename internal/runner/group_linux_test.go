package runner_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/runner"
)

func TestTheDeadThatNobodyBuriesKeepNoLease(t *testing.T) {
	t.Parallel()
	// A process of the group has ended, and its parent, outside the group, does not wait for it.
	parent := filepath.Join(t.TempDir(), "parent")
	fifo, written := newFIFO(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-written; cancel() }()
	script := `sh -c 'sleep 0.2 & echo $$ $! >"` + parent + `"; exec setsid sleep 60' &
		until read parent dead <"` + parent + `" && read name </proc/$parent/comm && test "$name" = sleep && grep -q "^State:.Z" /proc/$dead/status; do sleep 0.05; done
		echo ready >"` + fifo + `"; wait`
	began := time.Now()
	got, err := runner.Run(ctx, configure(t, &gateway{ttl: time.Minute}, script))
	if took := time.Since(began); err != nil || got.ExitCode != 143 || took > 40*time.Second {
		t.Errorf("got %+v, %v after %s, want it to end at TERM", got, err, took)
	}
	b, err := os.ReadFile(parent)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(b), " ")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the parent was to live on: %v", err)
	}
}
