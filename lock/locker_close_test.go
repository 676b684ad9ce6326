package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// freed fails unless a resource is free on all nodes.
func freed(t *testing.T, l *lock.Locker, resource string) {
	t.Helper()
	ins, err := leasing.One(l.Inspect(t.Context(), resource))
	must(t, err)
	for _, m := range ins.Members {
		if m.Err != nil || m.Locked {
			t.Errorf("nobody has the lease of %q; %s: locked %v, error %v", resource, m.Name, m.Locked, m.Err)
		}
	}
}

func TestCloseGivesBackWhatACallHasThatWaitsForMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		other, l := started(t, cfg), locker(t, cfg)
		held := acquire(t, other, "b")
		outcome := make(chan error, 1)
		go func() {
			_, err := l.AcquireAll(t.Context(), []string{"a", "b"})
			outcome <- err
		}()
		synctest.Wait()
		if l.Waiting("b") != 1 {
			t.Fatal("it does not wait for b")
		}
		if _, err := other.TryAcquire(t.Context(), "a"); !errors.Is(err, lock.ErrHeld) {
			t.Fatalf("it has not taken a: %v", err)
		}
		must(t, l.Close())
		freed(t, other, "a")
		if err := <-outcome; !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v; want ErrClosed", err)
		}
		release(t, held)
	})
}

// waits arms nothing until its caller gives up.
type waits struct {
	anyFence

	asked chan struct{}
}

func (w waits) Arm(ctx context.Context, _ ...fence.Arming) error {
	close(w.asked)
	<-ctx.Done()
	return ctx.Err()
}

func TestCloseGivesBackALeaseThatIsBeingArmed(t *testing.T) {
	t.Parallel()
	for _, several := range []bool{false, true} {
		t.Run(fmt.Sprintf("several: %t", several), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				other, armer := started(t, cfg), waits{asked: make(chan struct{})}
				cfg.Armer = armer
				l := locker(t, cfg)
				outcome := make(chan error, 1)
				go func() {
					var err error
					if several {
						_, err = l.AcquireAll(t.Context(), []string{"r", "s"})
					} else {
						_, err = l.Acquire(t.Context(), "r")
					}
					outcome <- err
				}()
				<-armer.asked
				must(t, l.Close())
				freed(t, other, "r")
				freed(t, other, "s")
				if err := <-outcome; !errors.Is(err, lock.ErrClosed) {
					t.Errorf("%v; want ErrClosed", err)
				}
			})
		})
	}
}

// Close cuts an arming off, and the fence may have been raised. A source says so, too.
func TestASourceSaysThatCloseLeftAnArmingUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		started(t, cfg)
		armer := waits{asked: make(chan struct{})}
		cfg.Armer = armer
		s := locker(t, cfg).Source()
		outcome := make(chan error, 1)
		go func() {
			_, err := leasing.One(s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: time.Minute}))
			outcome <- err
		}()
		<-armer.asked
		must(t, s.Close())
		if err := <-outcome; !errors.Is(err, leasing.ErrClosed) || !errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%v; want ErrClosed and ErrUnknown", err)
		}
	})
}

// A release that has begun ends as it would without Close. What begins later is refused.
func TestCloseWaitsForARelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		other := started(t, cfg)
		gate := make(chan struct{})
		cfg.Armer = &ender{end: func(_ context.Context, e fence.Ending) error {
			if e.Resource == "r" {
				<-gate
			}
			return nil
		}}
		l := locker(t, cfg)
		lease, later := acquire(t, l, "r"), acquire(t, l, "later")
		released, closed := make(chan error, 1), make(chan error, 1)
		go func() { released <- lease.Release(t.Context()) }()
		synctest.Wait() // it waits for the fence
		go func() { closed <- l.Close() }()
		time.Sleep(1900 * time.Millisecond) // Close's patience is two seconds
		if _, err := l.TryAcquire(t.Context(), "new"); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("acquire: %v; want ErrClosed", err)
		}
		if len(closed) != 0 {
			t.Error("Close did not wait for the release")
		}
		close(gate)
		must(t, <-released)
		must(t, <-closed)
		for name, err := range map[string]error{
			"extend": later.Extend(t.Context(), time.Minute), "release": l.Release(t.Context(), later.Ref()),
		} {
			if !errors.Is(err, lock.ErrClosed) || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("%s: %v; want ErrClosed", name, err)
			}
		}
		freed(t, other, "r")
	})
}

// deafArmer ignores its context.
type deafArmer struct {
	anyFence

	asked, gate chan struct{}
}

func (d deafArmer) Arm(context.Context, ...fence.Arming) error {
	close(d.asked)
	<-d.gate
	return nil
}

func TestCloseWaitsTwoSecondsForAnArmer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 1)
		started(t, cfg)
		armer := deafArmer{asked: make(chan struct{}), gate: make(chan struct{})}
		cfg.Armer = armer
		l := locker(t, cfg)
		outcome := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), "r")
			outcome <- err
		}()
		<-armer.asked
		begun := time.Now()
		must(t, l.Close())
		if took := time.Since(begun); took != 2*time.Second {
			t.Errorf("close took %v", took)
		}
		close(armer.gate)
		must(t, <-outcome) // its lease lasts until its deadline
	})
}
