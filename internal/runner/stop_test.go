package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
)

func TestACommandThatWasStoppedEndsWhenItIsAskedTo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	fifo, written := newFIFO(t)
	go func() { <-written; cancel() }()
	cfg := configure(t, &gateway{ttl: time.Minute}, `sh -c 'kill -STOP $PPID; echo stopped >"$0"' '`+fifo+`' & wait`)
	got, err := runner.Run(ctx, cfg)
	if err != nil || got.ExitCode != 143 || got.Ended {
		t.Errorf("got %+v, %v, want it ended by TERM", got, err)
	}
}

func TestTheLeaseIsKeptUntilAllThatWasAskedToStopHasStopped(t *testing.T) {
	t.Parallel()
	// The shell ends at TERM. Its child stops in order, which takes longer.
	stopped := filepath.Join(t.TempDir(), "stopped")
	fifo, written := newFIFO(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-written; cancel() }()
	g := &gateway{ttl: time.Minute}
	g.release = func() {
		if _, err := os.Stat(stopped); err != nil {
			t.Errorf("the lease was released before: %v", err)
		}
	}
	worker := `trap 'sleep 1; echo >"` + stopped + `"; exit' TERM; echo ready >"` + fifo + `"; while :; do sleep 0.05; done`
	cfg := configure(t, g, `sh -c "$WORKER" & wait`)
	cfg.Environ = append(cfg.Environ, "WORKER="+worker)
	got, err := runner.Run(ctx, cfg)
	if err != nil || got.ExitCode != 143 || got.Ended || g.released.Load() != 1 {
		t.Errorf("got %+v, %v and %d releases, want the shell ended by TERM and one release", got, err, g.released.Load())
	}
}

func TestACommandIsNotStartedWhenItsLeaseHasNoTimeLeft(t *testing.T) {
	t.Parallel()
	began := filepath.Join(t.TempDir(), "began")
	for _, onLost := range []runner.OnLost{runner.Kill, runner.Warn} {
		g := &gateway{ttl: time.Minute, valid: 50 * time.Millisecond}
		cfg := configure(t, g, "echo >'"+began+"'")
		cfg.OnLost = onLost
		_, err := runner.Run(t.Context(), cfg)
		if _, statErr := os.Stat(began); statErr == nil || !errors.Is(err, runner.ErrLate) || g.released.Load() != 1 {
			t.Errorf("got %v and %d releases, and the command started: %t", err, g.released.Load(), statErr == nil)
		}
		if err != nil && !strings.Contains(err.Error(), `"orders/10 01"`) {
			t.Errorf("it does not say of which resource: %v", err)
		}
	}
}

// Without the port the command would keep its own settings, and write around the gateway.
func TestAPortThatIsMissingAndNeededStartsNothing(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(*runner.Config){
		"PostgreSQL port": func(cfg *runner.Config) { cfg.PGURLs = []string{"DATABASE_URL"} },
		"S3 port":         func(cfg *runner.Config) { cfg.S3.Required = true },
	} {
		g := &gateway{ttl: time.Minute, portless: true}
		cfg := configure(t, g, "echo started")
		var stdout strings.Builder
		cfg.Stdout = &stdout
		set(&cfg)
		_, err := runner.Run(t.Context(), cfg)
		if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), want) || stdout.Len() > 0 || g.released.Load() != 1 {
			t.Errorf("%s: %v, %q, %d leases released; want a refusal and one", want, err, stdout.String(), g.released.Load())
		}
	}
}

func TestAnInterruptEndsTheCommandUnderItsLease(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	cfg := configure(t, g, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	cfg.Stdout = writerFunc(func([]byte) { cancel() })
	result, err := runner.Run(ctx, cfg)
	if err != nil || result.ExitCode != 3 || result.Ended || g.released.Load() != 1 {
		t.Errorf("got %+v, %v and %d releases, want exit code 3 and one release", result, err, g.released.Load())
	}
}

func TestTheSecondSignalKills(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	signals := make(chan os.Signal) // unbuffered: each comes a second after the one before was received
	over := make(chan struct{})
	cfg := configure(t, g, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	cfg.Signals = signals
	cfg.Stdout = writerFunc(func([]byte) {
		signals <- os.Interrupt
		go func() { // on a busy machine the first may be looked at just before the second comes, which then does not count
			for {
				select {
				case <-time.After(time.Second):
				case <-over:
					return
				}
				select {
				case signals <- os.Interrupt:
				case <-over:
					return
				}
			}
		}()
	})
	result, err := runner.Run(t.Context(), cfg)
	close(over)
	if err != nil || result.ExitCode != 137 || g.released.Load() != 1 {
		t.Errorf("got %+v, %v and %d releases, want KILL and one release", result, err, g.released.Load())
	}
}
