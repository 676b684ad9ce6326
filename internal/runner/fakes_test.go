package runner

import (
	"cmp"
	"context"
	"syscall"
	"testing"
	"time"
)

// Command is a command without a process, for a bubble. It ignores TERM, and records when it got which signal.
type Command struct {
	Runs    time.Duration // it then ends by itself; 0: after an hour
	Code    int           // its exit code then
	Signals []string      // such as "terminated after 22.4s"
	Started bool

	began   time.Time
	exited  chan int
	dead    bool  // its exit code is about to come
	refusal error // the answer to each signal
}

func (c *Command) begin() {
	c.Started, c.began, c.exited = true, time.Now(), make(chan int, 2)
	time.AfterFunc(cmp.Or(c.Runs, time.Hour), func() { c.exited <- c.Code })
}

// Lasted is for how long a command that has ended by itself has run.
func (c *Command) Lasted() time.Duration {
	if !c.Started {
		return 0
	}
	return c.Runs
}

func (c *Command) done() <-chan int { return c.exited }
func (c *Command) ended() bool      { return c.dead }
func (c *Command) groupGone() bool  { return false }
func (c *Command) unwatched()       {}

func (c *Command) signal(sig syscall.Signal) error {
	c.Signals = append(c.Signals, sig.String()+" after "+time.Since(c.began).String())
	if sig == syscall.SIGKILL {
		c.exited <- 137
	}
	return c.refusal
}

// Run is [Run] with this command instead of a process, and without a watchdog.
func (c *Command) Run(ctx context.Context, t *testing.T, cfg Config) (Result, error) {
	t.Helper()
	cfg.start = func(Config, string) (process, error) {
		c.begin()
		return c, nil
	}
	cfg.home = func() (string, func(), error) { return t.TempDir(), func() {}, nil }
	return Run(ctx, cfg)
}
