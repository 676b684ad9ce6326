package lock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// Wherever an acquisition is cancelled, its lock is given back and not left for its TTL.
func TestAnAcquisitionThatIsCancelledAnywhereLeavesNoLock(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l := started(t, cfg)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
				try := l.TryAcquire
				if rand.IntN(2) == 0 {
					try = l.Acquire
				}
				lease, err := try(ctx, "r", lock.WithTTL(5*time.Minute))
				deadline, _ := ctx.Deadline()
				ended := !time.Now().Before(deadline) // its timer may be late
				cancel()
				switch {
				case err == nil:
					lease.ReleaseAsync()
				case !ended && !errors.Is(err, lock.ErrHeld):
					t.Errorf("not cancelled, and yet: %v", err)
				}
			}
		})
	}
	callers.Wait()
	free(t, l, "r")
}

// A renewal in progress when a lease is released must not restore its lock, nor keep the Locker from closing.
func TestRenewalsRaceWithReleaseAndClose(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l := started(t, cfg)
	closing, err := lock.New(cfg)
	must(t, err)
	for i := range 60 {
		forever := lock.WithKeepAlive(lock.KeepAlive{For: time.Hour})
		var lease *lock.Lease
		for lease == nil {
			var err error
			lease, err = l.Acquire(t.Context(), "r", lock.WithTTL(100*time.Millisecond), forever)
			if err != nil && !errors.Is(err, lock.ErrLost) { // on a busy machine the TTL runs out meanwhile
				t.Fatal(err)
			}
		}
		timer := time.NewTimer(rand.N(45 * time.Millisecond)) // renewals start at 33 ms
		<-timer.C
		if i%2 == 0 {
			lease.ReleaseAsync()
		} else if err := lease.Release(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
		if _, err := lease.Grant(); err == nil {
			t.Fatal("a released lease still grants")
		}
	}
	free(t, l, "r")
	for range 20 {
		_, err := closing.Acquire(t.Context(), "other-"+strconv.Itoa(rand.Int()), lock.WithTTL(50*time.Millisecond), lock.WithKeepAlive(lock.KeepAlive{For: time.Hour}))
		if err != nil && !lock.Retryable(err) && !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
	}
	closed := make(chan error)
	go func() { closed <- closing.Close() }()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("Close hangs")
	}
}

// No lock depends on the queue. If the node that keeps it dies, the waiter notices and still gets the resource.
func TestAWaiterOutlivesItsHome(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	holder := started(t, cfg)
	waiter := locker(t, cfg)
	lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
	home := holder.Home("r")
	got := make(chan *lock.Lease)
	go func() {
		next, err := waiter.Acquire(t.Context(), "r")
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	eventually(t, 10*time.Second, "it waits at home", func() bool { return queued(t, cfg, home, "r") == 1 })
	must(t, servers[home].Kill())
	release(t, lease)
	select {
	case next := <-got:
		release(t, next)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for ever")
	}
}
