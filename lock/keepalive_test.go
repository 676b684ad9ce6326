package lock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestKeepAliveRenewsUntilItsCap(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	testenv.Paced(t, 600*time.Millisecond, func(ttl time.Duration) error {
		ended := make(chan error, 1)
		begun := time.Now()
		lease := acquire(t, l, "r", lock.WithTTL(ttl), lock.WithKeepAlive(lock.KeepAlive{
			Renewals: 4, Ended: func(err error) { ended <- err },
		}))
		select {
		case <-lease.Done():
		case <-time.After(30 * ttl):
			t.Fatal("renewed beyond the cap")
		}
		err := <-ended
		if errors.Is(err, lock.ErrLost) {
			return err // not renewed in time
		}
		if lived := time.Since(begun); lived < ttl+ttl/2 {
			t.Errorf("the lease lived for %v only", lived)
		}
		if !errors.Is(err, lock.ErrCapped) {
			t.Errorf("ended: %v", err)
		}
		return nil
	})
}

func TestAStuckWorkerIsNotRenewed(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	stuck := errors.New("no item done since the last renewal")
	testenv.Paced(t, 300*time.Millisecond, func(ttl time.Duration) error {
		ended := make(chan error, 1)
		var asked atomic.Int32
		lease := acquire(t, l, "r", lock.WithTTL(ttl), lock.WithKeepAlive(lock.KeepAlive{
			For: time.Hour, Ended: func(err error) { ended <- err },
			Progress: func(context.Context) error {
				if asked.Add(1) > 2 {
					return stuck
				}
				return nil
			},
		}))
		select {
		case <-lease.Done():
		case <-time.After(30 * ttl):
			t.Fatal("renewed without progress")
		}
		err := <-ended
		if errors.Is(err, lock.ErrLost) {
			return err // not renewed in time
		}
		if !errors.Is(err, stuck) {
			t.Errorf("ended: %v", err)
		}
		return nil
	})
}

func TestReleaseEndsRenewalsQuietly(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	var quiet *atomic.Pointer[error]
	testenv.Paced(t, 200*time.Millisecond, func(ttl time.Duration) error {
		var ended atomic.Pointer[error]
		quiet = &ended
		lease := acquire(t, l, "r", lock.WithTTL(ttl), lock.WithKeepAlive(lock.KeepAlive{
			For: time.Hour, Ended: func(err error) { ended.Store(&err) },
		}))
		first := lease.Deadline()
		over := func() bool { return lease.Context().Err() != nil }
		eventually(t, 100*ttl, "the lease is renewed", func() bool { return lease.Deadline().After(first) || over() })
		return lease.Release(t.Context()) // lost if it was not renewed in time
	})
	must(t, l.Close()) // waits for the goroutine
	if err := quiet.Load(); err != nil {
		t.Errorf("ended: %v", *err)
	}
}

func TestKeepAliveNeedsACap(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 1))
	_, err := l.TryAcquire(t.Context(), "r", lock.WithKeepAlive(lock.KeepAlive{}))
	if !errors.Is(err, fence.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
}

func TestALeaseIsGivenBackWhenItsLastHandleIsReleased(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	o := lock.NewOwner()
	outer, inner := acquire(t, l, "r", lock.WithOwner(o)), acquire(t, l, "r", lock.WithOwner(o))
	if token(t, inner) != token(t, outer) {
		t.Error("another token")
	}
	release(t, outer)
	if _, err := outer.Grant(); !errors.Is(err, lock.ErrReleased) {
		t.Errorf("released handle: %v", err)
	}
	release(t, outer) // the second call does nothing
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("given back too early: %v", err)
	}
	token(t, inner)
	release(t, inner)
	select {
	case <-inner.Done():
	default:
		t.Error("the context outlives the lease")
	}
	release(t, acquire(t, l, "r"))
}

func TestReleaseAsyncFreesTheResource(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		var last fence.Token
		for range 20 {
			lease := acquire(t, l, "r")
			if got := token(t, lease); got <= last {
				t.Fatalf("token %d after %d", got, last)
			} else {
				last = got
			}
			lease.ReleaseAsync()
			lease.ReleaseAsync()
			if _, err := lease.Grant(); !errors.Is(err, lock.ErrReleased) {
				t.Fatalf("grant: %v", err)
			}
		}
		free(t, l, "r")
	})
}
