package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

func TestKeepAliveRenewsUntilItsCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		var ended error
		lease := acquire(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{
			Renewals: 4, Ended: func(err error) { ended = err },
		}))
		begun := time.Now()
		<-lease.Done()
		synctest.Wait()
		// Each renewal comes a quarter to a third of the TTL after the one before; the last one's TTL runs out.
		if lived, ttl := time.Since(begun), lock.DefaultTTL; lived < 2*ttl-ttl/50 || lived > ttl*7/3 {
			t.Errorf("the lease lived for %v", lived)
		}
		if !errors.Is(ended, lock.ErrCapped) {
			t.Errorf("ended: %v", ended)
		}
	})
}

func TestAStuckWorkerIsNotRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		stuck := errors.New("no item done since the last renewal")
		var ended error
		asked := 0
		lease := acquire(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{
			For: time.Hour, Ended: func(err error) { ended = err },
			Progress: func(context.Context) error {
				if asked++; asked > 2 {
					return stuck
				}
				return nil
			},
		}))
		begun := time.Now()
		<-lease.Done()
		synctest.Wait()
		if lived, ttl := time.Since(begun), lock.DefaultTTL; lived < ttl*3/2-ttl/50 || lived > ttl*5/3 {
			t.Errorf("renewed twice, the lease lived for %v", lived)
		}
		if !errors.Is(ended, stuck) {
			t.Errorf("ended: %v", ended)
		}
	})
}

func TestReleaseEndsRenewalsQuietly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		var ended error
		lease := acquire(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{
			For: time.Hour, Ended: func(err error) { ended = err },
		}))
		first := lease.Deadline()
		time.Sleep(2 * time.Minute)
		if !lease.Deadline().After(first) {
			t.Error("not renewed")
		}
		release(t, lease)
		must(t, l.Close()) // waits for the goroutine
		if ended != nil {
			t.Errorf("ended: %v", ended)
		}
	})
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
