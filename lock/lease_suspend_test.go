package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// over are the ways to see that a lease is over.
var over = map[string]func(lease *lock.Lease) bool{
	"cause": func(lease *lock.Lease) bool { return errors.Is(context.Cause(lease.Context()), lock.ErrLost) },
	"err":   func(lease *lock.Lease) bool { return lease.Context().Err() != nil },
	"grant": func(lease *lock.Lease) bool { _, err := lease.Grant(); return errors.Is(err, lock.ErrLost) },
	"done": func(lease *lock.Lease) bool {
		select {
		case <-lease.Done():
			return true
		default:
			return false
		}
	},
	"a context made of it": func(lease *lock.Lease) bool {
		inner, cancel := context.WithCancel(lease.Context())
		defer cancel()
		return inner.Err() != nil
	},
}

// The time in which the machine is suspended counts. Timers do not fire by it, so the first look finds the lease over,
// whichever it is.
func TestALeaseThatEndedInASuspensionIsOverAtTheFirstLook(t *testing.T) {
	t.Parallel()
	for name, over := range over {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				clock := cfg.WithClock()
				lease := acquire(t, started(t, cfg), "r")
				left := lease.Deadline().Left()
				if clock.Suspend(left - time.Millisecond); over(lease) {
					t.Error("over before its deadline")
				}
				clock.Suspend(time.Millisecond)
				if !over(lease) {
					t.Error("not over")
				}
			})
		})
	}
}

// NTP, or an operator, sets the clock: nobody was suspended.
func TestAClockThatWasOnlySetMovesNoDeadline(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Millisecond, time.Hour, -time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				clock := cfg.WithClock()
				l := started(t, cfg)
				lease := acquire(t, l, "r")
				clock.Set(by)
				if left := lease.Deadline().Left(); left != l.Validity() {
					t.Errorf("the lease lasts for %v; want %v", left, l.Validity())
				}
				time.Sleep(lease.Deadline().Left() - time.Nanosecond)
				if _, err := lease.Grant(); err != nil {
					t.Errorf("before its deadline: %v", err)
				}
				time.Sleep(time.Nanosecond)
				if _, err := lease.Grant(); !errors.Is(err, lock.ErrLost) {
					t.Errorf("at its deadline: %v", err)
				}
			})
		})
	}
}

// The nodes ran on while the machine was suspended: a lock that they granted before may be over.
func TestAnAnswerFromBeforeASuspensionGrantsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		suspended time.Duration
		want      error
	}{
		"for longer than a round":   {2 * time.Second, lock.ErrNodeTimeout},
		"for longer than the lease": {lock.DefaultTTL, lock.ErrNodeTimeout},
		"for a moment":              {500 * time.Millisecond, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				clock := cfg.WithClock()
				l := started(t, cfg)
				release(t, acquire(t, l, "r")) // connects
				synctest.Wait()                // the reader waits for the next answer
				nodes[0].Replies.Close()
				acquired := make(chan error, 1)
				var lease *lock.Lease
				go func() {
					var err error
					lease, err = l.TryAcquire(t.Context(), "r")
					acquired <- err
				}()
				synctest.Wait()
				clock.Suspend(c.suspended)
				nodes[0].Replies.Open()
				if err := <-acquired; !errors.Is(err, c.want) {
					t.Fatalf("%v; want %v", err, c.want)
				}
				if c.want != nil {
					synctest.Wait()
					freed(t, l, "r")
					return
				}
				clock.Suspend(l.Validity() - c.suspended)
				if _, err := lease.Grant(); !errors.Is(err, lock.ErrLost) {
					t.Errorf("the suspension during the acquisition does not count: %v", err)
				}
			})
		})
	}
}

// Renewals do not revive a lease that ended while the machine was suspended.
func TestARenewalAfterASuspensionFindsTheLeaseLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		clock := cfg.WithClock()
		l := started(t, cfg)
		ended := make(chan error, 1)
		acquire(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{For: time.Hour, Ended: func(err error) { ended <- err }}))
		begun := time.Now()
		clock.Suspend(lock.DefaultTTL)
		if err := <-ended; !errors.Is(err, lock.ErrLost) || time.Since(begun) > lock.DefaultTTL/3 {
			t.Errorf("renewals ended after %v: %v", time.Since(begun), err)
		}
	})
}

// [leasing.Do] counts by the clock of its source, as the Locker's own leases do.
func TestDoEndsItsWorkAfterASuspension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		clock := cfg.WithClock()
		l := started(t, cfg)
		r := leasing.Request{Resource: "r", TTL: lock.DefaultTTL}
		err := leasing.Do(t.Context(), l.Source(), r, 0, func(ctx context.Context, _ fence.Grant) error {
			time.Sleep(lock.DefaultTTL) // it is renewed
			if ctx.Err() != nil {
				t.Errorf("before the suspension: %v", context.Cause(ctx))
			}
			begun := time.Now()
			clock.Suspend(lock.DefaultTTL)
			if ctx.Err() == nil || time.Since(begun) > 0 {
				t.Errorf("the work's context is valid after its lease, until %v later", time.Since(begun))
			}
			return nil
		})
		if !errors.Is(err, lock.ErrLost) {
			t.Errorf("%v; want ErrLost", err)
		}
	})
}
