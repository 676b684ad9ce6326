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

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// suspend runs in the stopped process. It checks its lease continuously, so that it is stopped between any two of its
// steps, and reports how the lease ended.
func (c *tortureClient) suspend(ctx context.Context, l *lock.Locker) error {
	lease, err := l.Acquire(ctx, "r", lock.WithTTL(c.cfg.Suspend))
	if errors.Is(err, lock.ErrLost) {
		fmt.Println("was not in time")
		return nil
	}
	if err != nil {
		return err
	}
	longest, last := time.Duration(0), time.Now()
	fmt.Println("held") // it may be stopped before this returns
	for {
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
		alive := lease.Context().Err() == nil
		select {
		case <-lease.Done():
			alive = false
		default:
		}
		_, err := lease.Grant()
		longest = max(longest, time.Since(last))
		switch {
		case now.After(lease.Deadline()) && (alive || err == nil):
			fmt.Println("used after its deadline")
			return nil
		case err != nil && !errors.Is(err, lock.ErrLost):
			return err
		case err != nil && longest < c.cfg.Suspend/2:
			fmt.Println("was not stopped")
			return nil
		case err != nil:
			fmt.Println("lost")
			return nil
		}
	}
}

// A process that was stopped past the end of its lease finds it over at its first check, whether or not its timers
// have fired.
func TestAStoppedProcessWakesUpWithoutItsLease(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	started(t, cfg)
	c := clientConfig{Prefix: cfg.KeyPrefix, MaxTTL: time.Minute, Authority: newAuthority(t).path}
	for _, n := range cfg.Nodes {
		c.Addrs = append(c.Addrs, n.Addr)
	}
	for range 3 {
		testenv.Paced(t, 400*time.Millisecond, func(ttl time.Duration) error {
			c.Suspend = ttl
			p := startTortureClient(t, c)
			defer p.end(t)
			if got := p.says(t); got != "held" {
				return errors.New(got)
			}
			must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
			timer := time.NewTimer(2 * ttl)
			<-timer.C
			must(t, p.cmd.Process.Signal(syscall.SIGCONT))
			switch got := p.says(t); got {
			case "lost":
				return nil
			case "was not stopped":
				return errors.New(got)
			default:
				t.Fatalf("the process says %q", got)
				return nil
			}
		})
	}
}

// interrupted makes requests to the nodes until it was stopped while it waited, and reports the result of that
// request.
func (c *tortureClient) interrupted(ctx context.Context, l *lock.Locker) error {
	for asked := 0; ; asked++ {
		begun := time.Now()
		lease, err := l.TryAcquire(ctx, "r", lock.WithTTL(time.Minute))
		took := time.Since(begun)
		switch {
		case err != nil && took < c.cfg.Interrupt:
			fmt.Println("was too slow:", err)
			return nil
		case err != nil:
			fmt.Println(err)
			return nil
		case took >= c.cfg.Interrupt:
			fmt.Println("acquired")
			return nil
		case asked == 0:
			fmt.Println("asks")
		}
		err = lease.Release(ctx)
		switch took = time.Since(begun); {
		case err != nil && took < c.cfg.Interrupt:
			fmt.Println("was too slow:", err)
			return nil
		case took >= c.cfg.Interrupt:
			fmt.Println("released", err)
			return nil
		}
	}
}

// A process that was stopped for longer than its connections wait reads the answers that came meanwhile. It does not
// report a node as silent because of its own suspension.
func TestAStoppedProcessFindsItsAnswers(t *testing.T) {
	t.Parallel()
	cfg, relays := relayed(t, 1)
	started(t, cfg)
	c := clientConfig{Prefix: cfg.KeyPrefix, MaxTTL: 5 * time.Minute, Authority: newAuthority(t).path, Addrs: []string{relays[0].addr}}
	for range 2 {
		testenv.Paced(t, 1200*time.Millisecond, func(least time.Duration) error {
			c.Interrupt = least
			p := startTortureClient(t, c)
			defer p.end(t)
			if got := p.says(t); got != "asks" {
				return errors.New(got)
			}
			way := &relays[0].replies
			before, begun := way.waiting.Load(), time.Now()
			way.close()
			defer way.open()
			eventually(t, 10*time.Second, "an answer is on its way", func() bool { return way.waiting.Load() > before })
			must(t, child.Freeze(p.cmd.Process.Pid))
			frozen := time.Since(begun)
			way.open()
			<-time.After(2 * least) // a connection waits for four node timeouts, and for a second at least
			must(t, p.cmd.Process.Signal(syscall.SIGCONT))
			switch got := p.says(t); got {
			case "acquired", "released <nil>":
				return nil
			default:
				if frozen >= least/8 || strings.HasPrefix(got, "was too slow") { // half its node timeout: it may have given up
					return fmt.Errorf("frozen after %v: %s", frozen, got)
				}
				t.Errorf("the process says %q", got)
				return nil
			}
		})
	}
}
