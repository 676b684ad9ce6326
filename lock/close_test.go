package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// freed fails unless a resource is free on all nodes.
func freed(t *testing.T, l *lock.Locker, resource string) {
	t.Helper()
	must(t, patiently(t.Context(), func() error {
		ins, err := l.Inspect(t.Context(), resource)
		for _, m := range ins.Members {
			if m.Err != nil {
				return fmt.Errorf("%w: %w", lock.ErrNodeTimeout, m.Err) // a query has a second
			}
			if m.Locked {
				t.Errorf("nobody has the lease of %q, and %s has its lock", resource, m.Name)
			}
		}
		return err
	}))
}

// ended waits for the outcome of a call that Close has ended.
func ended(t *testing.T, outcome <-chan error) error {
	t.Helper()
	select {
	case err := <-outcome:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the call goes on after Close")
	}
	return nil
}

func TestCloseGivesBackWhatACallHasThatWaitsForMore(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	other, l := started(t, cfg), locker(t, cfg)
	held := acquire(t, other, "b", lock.WithTTL(time.Minute))
	outcome := make(chan error, 1)
	go func() {
		_, err := l.AcquireAll(t.Context(), []string{"a", "b"}, lock.WithTTL(time.Minute))
		outcome <- err
	}()
	eventually(t, 20*time.Second, "it has a, and waits for b", func() bool {
		ins, err := other.Inspect(t.Context(), "b")
		return err == nil && ins.Waiters == 1 && l.Waiting("b") == 1
	})
	must(t, l.Close())
	freed(t, other, "a")
	if err := ended(t, outcome); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
	release(t, held)
}

// waits arms nothing until its caller gives up.
type waits chan struct{}

func (w waits) Arm(ctx context.Context, _ fence.Arming) error {
	close(w)
	<-ctx.Done()
	return ctx.Err()
}

func TestCloseGivesBackALeaseThatIsBeingArmed(t *testing.T) {
	t.Parallel()
	for _, several := range []bool{false, true} {
		cfg := shared(t, 3)
		other, armer := started(t, cfg), make(waits)
		cfg.Armer = armer
		l := locker(t, cfg)
		outcome := make(chan error, 1)
		go func() {
			var err error
			if several {
				_, err = l.AcquireAll(t.Context(), []string{"r", "s"}, lock.WithTTL(time.Minute))
			} else {
				_, err = l.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
			}
			outcome <- err
		}()
		select {
		case <-armer:
		case err := <-outcome:
			t.Fatalf("before it was armed: %v", err)
		}
		must(t, l.Close())
		freed(t, other, "r")
		freed(t, other, "s")
		if err := ended(t, outcome); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v; want ErrClosed", err)
		}
	}
}

// Close cuts an arming off, and the fence may have been raised. A source says so, too.
func TestASourceSaysThatCloseLeftAnArmingUnknown(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	started(t, cfg)
	armer := make(waits)
	cfg.Armer = armer
	s := locker(t, cfg).Source()
	outcome := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), leasing.Request{Resource: "r", TTL: time.Minute})
		outcome <- err
	}()
	<-armer
	must(t, s.Close())
	if err := ended(t, outcome); !errors.Is(err, leasing.ErrClosed) || !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("%v; want ErrClosed and ErrUnknown", err)
	}
}

// A release that has begun ends as it would without Close. What begins later is refused.
func TestCloseWaitsForARelease(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(time.Duration) error {
		cfg := shared(t, 3)
		other := started(t, cfg)
		asked, gate := make(chan struct{}), make(chan struct{})
		cfg.Armer = &ender{end: func(_ context.Context, e fence.Ending) error {
			if e.Resource == "r" {
				close(asked)
				<-gate
			}
			return nil
		}}
		l := locker(t, cfg)
		lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
		later := acquire(t, l, "later", lock.WithTTL(time.Minute))
		released, closed := make(chan error, 1), make(chan error, 1)
		go func() { released <- lease.Release(t.Context()) }()
		<-asked
		begun := time.Now()
		go func() { closed <- l.Close() }()
		eventually(t, 20*time.Second, "the Locker is being closed", func() bool {
			_, err := l.TryAcquire(t.Context(), "new")
			return errors.Is(err, lock.ErrClosed)
		})
		close(gate) // before Close's patience ends
		err := ended(t, released)
		if took := time.Since(begun); took > 1900*time.Millisecond {
			must(t, <-closed)
			return errors.Join(fmt.Errorf("the release took %v, and Close may not have waited for it", took), err)
		}
		must(t, err)
		must(t, <-closed)
		for name, err := range map[string]error{
			"extend": later.Extend(t.Context(), time.Minute), "release": l.Release(t.Context(), later.Ref()),
		} {
			if !errors.Is(err, lock.ErrClosed) || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("%s: %v; want ErrClosed", name, err)
			}
		}
		freed(t, other, "r")
		return nil
	})
}

// deaf ignores its context.
type deaf struct{ asked, gate chan struct{} }

func (d deaf) Arm(context.Context, fence.Arming) error {
	close(d.asked)
	<-d.gate
	return nil
}

func TestCloseDoesNotWaitForeverForAnArmer(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 1)
	started(t, cfg)
	armer := deaf{make(chan struct{}), make(chan struct{})}
	cfg.Armer = armer
	l := locker(t, cfg)
	outcome := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
		outcome <- err
	}()
	<-armer.asked
	within(t, 20*time.Second, "close", func() { must(t, l.Close()) })
	close(armer.gate)
	must(t, ended(t, outcome)) // its lease lasts until its deadline
}
