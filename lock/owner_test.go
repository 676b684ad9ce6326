package lock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
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
			if _, err := tryAcquire(t, l, "r", opts...); !errors.Is(err, lock.ErrHeld) {
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

// Another Locker has other nodes, or stands for another process in a test, so an owner's leases are separate for each
// Locker.
func TestAnOwnersLeaseIsOneLockers(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l, other := started(t, cfg), locker(t, cfg)
	o := lock.NewOwner()
	held := acquire(t, l, "r", lock.WithOwner(o), lock.WithTTL(time.Minute))
	if _, err := tryAcquire(t, other, "r", lock.WithOwner(o)); !errors.Is(err, lock.ErrHeld) {
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
	if _, err := l.AcquireAll(t.Context(), []string{"a", "b"}, lock.WithOwner(lock.NewOwner())); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// While one of an owner's calls waits for another holder, the others wait no longer than they would for that holder,
// and return the same error.
func TestAnOwnersCallsWaitForEachOtherAsTheirOptionsSay(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l, other := started(t, cfg), locker(t, cfg)
	held := acquire(t, other, "r", lock.WithTTL(time.Minute))
	o := lock.NewOwner()
	got := make(chan error, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "r", lock.WithOwner(o), lock.WithTTL(time.Minute))
		if err == nil {
			err = lease.Release(t.Context())
		}
		got <- err
	}()
	eventually(t, 20*time.Second, "it waits", func() bool { return l.Waiting("r") > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended, end := context.WithCancel(t.Context())
	end()
	_, tried := l.TryAcquire(ctx, "r", lock.WithOwner(o))
	_, waited := l.Acquire(ended, "r", lock.WithOwner(o))
	for what, err := range map[string]error{"TryAcquire": tried, "a wait that ended": waited} {
		said, ok := errors.AsType[*leasing.HeldError](err)
		if !ok || said.Resource != "r" || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !errors.Is(waited, context.Canceled) {
		t.Errorf("a wait that ended: %v", waited)
	}
	release(t, held)
	check(t, <-got)
}

func TestAnOwnersTriesAtOnceShareOneLease(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l, other := started(t, cfg), locker(t, cfg)
	o := lock.NewOwner()
	held := acquire(t, other, "r", lock.WithTTL(time.Minute))
	leases := make([]*lock.Lease, 20)
	try := func() (errs []error) {
		errs = make([]error, len(leases))
		var calls sync.WaitGroup
		for i := range leases {
			calls.Go(func() {
				errs[i] = patiently(t.Context(), func() (err error) {
					leases[i], err = l.TryAcquire(t.Context(), "r", lock.WithOwner(o), lock.WithTTL(time.Minute))
					return err
				})
			})
		}
		calls.Wait()
		return errs
	}
	for _, err := range try() {
		if !errors.Is(err, lock.ErrHeld) {
			t.Errorf("held by another: %v", err)
		}
	}
	release(t, held)
	for _, err := range try() {
		must(t, err)
	}
	for _, lease := range leases {
		if token(t, lease) != token(t, leases[0]) {
			t.Error("several leases of one owner")
		}
	}
	for _, lease := range leases {
		release(t, lease)
	}
}

// The lease is renewed only while the inner work runs.
func TestDoRenewsALeaseThatItsOwnerHolds(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	o := lock.NewOwner()
	outer := acquire(t, l, "r", lock.WithOwner(o), lock.WithTTL(8*time.Second))
	first := outer.Deadline()
	must(t, l.Do(t.Context(), "r", func(ctx context.Context, g fence.Grant) error {
		if g.Token != outer.Ref().Token {
			t.Errorf("another lease: %v", g)
		}
		eventually(t, 40*time.Second, "a renewal", func() bool { return outer.Deadline().After(first) || ctx.Err() != nil })
		return ctx.Err()
	}, lock.WithOwner(o)))
	if _, err := outer.Grant(); err != nil {
		t.Errorf("after the inner work: %v", err)
	}
	select {
	case <-outer.Done():
	case <-time.After(time.Minute):
		t.Error("it is renewed after the inner work")
	}
	if err := outer.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("release: %v", err)
	}
}
