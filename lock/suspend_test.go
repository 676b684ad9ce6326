//go:build linux

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/lock"
)

const suspendedTTL = 400 * time.Millisecond

// suspend is what the stopped process does: it looks at its lease all the time,
// so that it is stopped between any two of its steps, and says how it ended.
func (c *tortureClient) suspend(ctx context.Context, l *lock.Locker) error {
	lease, err := l.Acquire(ctx, "r", lock.WithTTL(suspendedTTL))
	if err != nil {
		return err
	}
	fmt.Println("held")
	longest := time.Duration(0)
	for {
		now := time.Now()
		alive := lease.Context().Err() == nil
		select {
		case <-lease.Done():
			alive = false
		default:
		}
		_, err := lease.Grant()
		longest = max(longest, time.Since(now))
		switch {
		case now.After(lease.Deadline()) && (alive || err == nil):
			fmt.Println("used after its deadline")
			return nil
		case err != nil && !errors.Is(err, lock.ErrLost):
			return err
		case err != nil && longest < suspendedTTL/2:
			fmt.Println("was not stopped")
			return nil
		case err != nil:
			fmt.Println("lost")
			return nil
		}
	}
}

// A process that was stopped over the end of its lease finds it over at its
// first look, whether or not its timers have run.
func TestAStoppedProcessWakesUpWithoutItsLease(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	started(t, cfg)
	c := clientConfig{Suspend: true, Prefix: cfg.KeyPrefix, MaxTTL: time.Minute, Authority: newAuthority(t).path}
	for _, n := range cfg.Nodes {
		c.Addrs = append(c.Addrs, n.Addr)
	}
	for range 3 {
		p := startTortureClient(t, c)
		p.await(t, "held")
		must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		timer := time.NewTimer(2 * suspendedTTL)
		<-timer.C
		must(t, p.cmd.Process.Signal(syscall.SIGCONT))
		line, err := p.output.ReadString('\n')
		must(t, err)
		if got := strings.TrimSpace(line); got == "was not stopped" {
			t.Log("the machine was too slow to stop it in time")
		} else if got != "lost" {
			t.Fatalf("the process says %q", got)
		}
		p.end(t)
	}
}
