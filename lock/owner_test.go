package lock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

func TestAnOwnersCallsShareOneLease(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		o := lock.NewOwner()
		outer := acquire(t, l, "r", lock.WithOwner(o), lock.WithTTL(time.Minute))
		inner := acquire(t, l, "r", lock.WithOwner(o))
		if token(t, inner) != token(t, outer) {
			t.Error("another token for the same owner")
		}
		for _, opts := range [][]lock.AcquireOption{nil, {lock.WithOwner(lock.NewOwner())}} {
			if _, err := l.TryAcquire(t.Context(), "r", opts...); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("another caller: %v", err)
			}
		}
		release(t, outer)
		if _, err := inner.Grant(); err != nil {
			t.Errorf("the lease ended with the first of two handles: %v", err)
		}
		release(t, inner)
		free(t, l, "r")
		again := acquire(t, l, "r", lock.WithOwner(o))
		if token(t, again) <= inner.Ref().Token {
			t.Error("the owner got its lease back after it was released")
		}
		release(t, again)
	})
}

// Another Locker has other nodes, or is another process's in a test: its leases are its own.
func TestAnOwnersLeaseIsOneLockers(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l, other := started(t, cfg), locker(t, cfg)
	o := lock.NewOwner()
	held := acquire(t, l, "r", lock.WithOwner(o), lock.WithTTL(time.Minute))
	if _, err := other.TryAcquire(t.Context(), "r", lock.WithOwner(o)); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("the other Locker: %v", err)
	}
	release(t, held)
}

func TestAnOwnersLostLeaseIsTakenAnew(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	o := lock.NewOwner()
	lost := acquire(t, l, "r", lock.WithOwner(o), lock.WithTTL(100*time.Millisecond))
	<-lost.Done()
	again := acquire(t, l, "r", lock.WithOwner(o), lock.WithTTL(time.Minute))
	if token(t, again) <= lost.Ref().Token {
		t.Error("a lease that is over was handed out again")
	}
	release(t, again)
}

func TestAnOwnersCallsMayComeAtOnce(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	o := lock.NewOwner()
	leases := make([]*lock.Lease, 20)
	var calls sync.WaitGroup
	for i := range leases {
		calls.Go(func() { leases[i] = acquire(t, l, "r", lock.WithOwner(o), lock.WithTTL(time.Minute)) })
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
	}
	for _, lease := range leases {
		calls.Go(func() { check(t, lease.Release(t.Context())) })
	}
	calls.Wait()
	free(t, l, "r")
}

func TestAnOwnerIsForOneResource(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 1))
	for _, opt := range []lock.AcquireOption{lock.WithOwner(lock.NewOwner()), lock.WithTries(3, time.Millisecond)} {
		if _, err := l.AcquireAll(t.Context(), []string{"a", "b"}, opt); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
}
