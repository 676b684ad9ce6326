package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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

// The first one ends the run's context, too. Half a second later another one is meant.
func TestTheSecondSignalKills(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gateway{ttl: 30 * time.Second, portless: true}
		began, released := time.Now(), time.Duration(0)
		g.release = func() { released = time.Since(began) }
		ctx, cancel := context.WithCancel(t.Context())
		signals := make(chan os.Signal)
		go func() {
			<-time.After(45 * time.Second)
			cancel()
			signals <- os.Interrupt
			<-time.After(400 * time.Millisecond)
			signals <- os.Interrupt
			<-time.After(200 * time.Millisecond)
			signals <- os.Interrupt
		}()
		cfg, _ := inBubble(t, g, g.ttl)
		cfg.Signals = signals
		command := new(runner.Command)
		result, err := command.Run(ctx, t, cfg)
		if err != nil || result.ExitCode != 137 || result.Ended || result.Lost != nil || !slices.Equal(command.Signals, []string{"terminated after 45s", "killed after 45.6s"}) {
			t.Errorf("got %+v, %v and %q, want TERM, and KILL at the next request", result, err, command.Signals)
		}
		if g.released.Load() != 1 || released != 45600*time.Millisecond {
			t.Errorf("%d releases, after %v, want one when the command has ended", g.released.Load(), released)
		}
	})
}
