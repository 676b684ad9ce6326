package lock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

func TestAnOwnersCallsShareOneLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		o := lock.NewOwner()
		outer, inner := leased(t, l, "r", lock.WithOwner(o)), leased(t, l, "r", lock.WithOwner(o))
		if token(t, inner) != token(t, outer) {
			t.Error("another token for the same owner")
		}
		for _, opts := range [][]lock.AcquireOption{nil, {lock.WithOwner(lock.NewOwner())}} {
			if _, err := l.TryAcquire(t.Context(), "r", opts...); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("another caller: %v", err)
			}
		}
		for range 2 { // the second call does nothing
			must(t, outer.Release(t.Context()))
			if _, err := outer.Grant(); !errors.Is(err, lock.ErrReleased) {
				t.Errorf("released handle: %v", err)
			}
		}
		if _, err := inner.Grant(); err != nil {
			t.Errorf("the lease ended with the first of two handles: %v", err)
		}
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("given back too early: %v", err)
		}
		must(t, inner.Release(t.Context()))
		select {
		case <-inner.Done():
		default:
			t.Error("the context outlives the lease")
		}
		unlocked(t, l, "r")
		if again := leased(t, l, "r", lock.WithOwner(o)); token(t, again) <= inner.Ref().Token {
			t.Error("the owner got its lease back after it was released")
		}
	})
}

// Another Locker has other nodes, or stands for another process in a test, so an owner's leases are separate for each
// Locker.
func TestAnOwnersLeaseIsOneLockers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l, other := started(t, cfg), locker(t, cfg)
		o := lock.NewOwner()
		leased(t, l, "r", lock.WithOwner(o))
		if _, err := other.TryAcquire(t.Context(), "r", lock.WithOwner(o)); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("the other Locker: %v", err)
		}
	})
}

func TestAnOwnersLostLeaseIsTakenAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		clock := cfg.WithClock()
		l := started(t, cfg)
		o := lock.NewOwner()
		lost := leased(t, l, "r", lock.WithOwner(o))
		clock.Suspend(lock.DefaultTTL) // its timer is late
		if _, err := l.TryAcquire(t.Context(), "r", lock.WithOwner(o)); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("the lock is still there: %v", err)
		}
		again, err := l.Acquire(t.Context(), "r", lock.WithOwner(o))
		must(t, err)
		if token(t, again) <= lost.Ref().Token {
			t.Error("a lease that is over was handed out again")
		}
	})
}

func TestAnOwnersCallsMayComeAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		slowly(nodes, 10*time.Millisecond)
		o := lock.NewOwner()
		leases := make([]*lock.Lease, 20)
		var calls sync.WaitGroup
		for i := range leases {
			calls.Go(func() {
				var err error
				leases[i], err = l.Acquire(t.Context(), "r", lock.WithOwner(o))
				check(t, err)
			})
		}
		calls.Wait()
		if t.Failed() {
			return
		}
		want := token(t, leases[0])
		for _, lease := range leases {
			if token(t, lease) != want {
				t.Error("several leases of one owner")
			}
			calls.Go(func() { check(t, lease.Release(t.Context())) })
		}
		calls.Wait()
		time.Sleep(time.Second)
		unlocked(t, l, "r")
	})
}

func TestAnOwnerIsForOneResource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 1)
		l := started(t, cfg)
		if _, err := l.AcquireAll(t.Context(), []string{"a", "b"}, lock.WithOwner(lock.NewOwner())); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%v", err)
		}
	})
}

// While one of an owner's calls waits for another holder, the others wait no longer than they would for that holder,
// and return the same error.
func TestAnOwnersCallsWaitForEachOtherAsTheirOptionsSay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l, other := started(t, cfg), locker(t, cfg)
		held := leased(t, other, "r")
		o := lock.NewOwner()
		got := waiting(t.Context(), l, "r", lock.WithOwner(o))
		refused := func(what string, err error) {
			t.Helper()
			if said, ok := errors.AsType[*leasing.HeldError](err); !ok || said.Resource != "r" {
				t.Errorf("%s: %v", what, err)
			}
		}
		begun := time.Now()
		_, err := l.TryAcquire(t.Context(), "r", lock.WithOwner(o))
		if refused("TryAcquire", err); time.Since(begun) != 0 {
			t.Errorf("TryAcquire took %v", time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = l.Acquire(ctx, "r", lock.WithOwner(o))
		if refused("a wait that ended", err); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 2*time.Second {
			t.Errorf("a wait that ended: after %v: %v", time.Since(begun), err)
		}
		must(t, handsOver(t, held, got, handover).Release(t.Context()))
	})
}

func TestAnOwnersTriesAtOnceShareOneLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l, other := started(t, cfg), locker(t, cfg)
		slowly(nodes, 10*time.Millisecond)
		o := lock.NewOwner()
		held := leased(t, other, "r")
		leases := make([]*lock.Lease, 20)
		try := func() (errs []error) {
			errs = make([]error, len(leases))
			var calls sync.WaitGroup
			for i := range leases {
				calls.Go(func() { leases[i], errs[i] = l.TryAcquire(t.Context(), "r", lock.WithOwner(o)) })
			}
			calls.Wait()
			return errs
		}
		for _, err := range try() {
			if !errors.Is(err, lock.ErrHeld) {
				t.Errorf("held by another: %v", err)
			}
		}
		if n := l.Attempts(); n > 3 {
			t.Errorf("%d attempts", n)
		}
		must(t, held.Release(t.Context()))
		time.Sleep(time.Second)
		for _, err := range try() {
			must(t, err)
		}
		for _, lease := range leases {
			if token(t, lease) != token(t, leases[0]) {
				t.Error("several leases of one owner")
			}
		}
	})
}

// The lease is renewed only while the inner work runs.
func TestDoRenewsALeaseThatItsOwnerHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		o := lock.NewOwner()
		outer := leased(t, l, "r", lock.WithOwner(o))
		must(t, l.Do(t.Context(), "r", func(ctx context.Context, g fence.Grant) error {
			if g.Token != outer.Ref().Token {
				t.Errorf("another lease: %v", g)
			}
			time.Sleep(10 * lock.DefaultTTL)
			return ctx.Err()
		}, lock.WithOwner(o)))
		if _, err := outer.Grant(); err != nil {
			t.Errorf("after the inner work: %v", err)
		}
		begun := time.Now()
		<-outer.Done()
		if lived := time.Since(begun); lived > lock.DefaultTTL {
			t.Errorf("it lived for %v after the inner work", lived)
		}
		if err := outer.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("release: %v", err)
		}
	})
}
