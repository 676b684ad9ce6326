package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/lock"
)

// Wherever an acquisition is cancelled, its lock is given back and not left for its TTL.
func TestAnAcquisitionThatIsCancelledAnywhereLeavesNoLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		slow := func() time.Duration { return rand.N(time.Millisecond) }
		for _, n := range nodes {
			n.Requests.Delay(slow)
			n.Replies.Delay(slow)
		}
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 30 {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(6*time.Millisecond))
					try := l.TryAcquire
					if rand.IntN(2) == 0 {
						try = l.Acquire
					}
					lease, err := try(ctx, "r", lock.WithTTL(time.Minute))
					ended := ctx.Err() != nil
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
		time.Sleep(100 * time.Millisecond) // what was queued is sent
		freed(t, l, "r")
	})
}

// A renewal in progress when a lease is released must not restore its lock, nor keep the Locker from closing.
func TestRenewalsRaceWithReleaseAndClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		closing := locker(t, cfg)
		slow := func() time.Duration { return rand.N(20 * time.Millisecond) } // a round takes 10 to 40 ms
		for _, n := range nodes {
			n.Requests.Delay(slow)
			n.Replies.Delay(slow)
		}
		forever := lock.WithKeepAlive(lock.KeepAlive{For: time.Hour})
		extending := 0
		for i := range 30 {
			lease := acquire(t, l, "r", forever)
			time.Sleep(lock.DefaultTTL / 4) // a renewal comes within the next 2.5 s
			for !lease.Extending() {
				time.Sleep(time.Millisecond)
			}
			if time.Sleep(rand.N(30 * time.Millisecond)); lease.Extending() {
				extending++
			}
			if i%2 == 0 {
				lease.ReleaseAsync()
			} else if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := lease.Grant(); !errors.Is(err, lock.ErrReleased) {
				t.Fatalf("a released lease: %v", err)
			}
			time.Sleep(100 * time.Millisecond) // what was queued is sent
			freed(t, l, "r")
		}
		if extending < 3 {
			t.Errorf("%d of 30 leases were released during a renewal", extending)
		}
		for i := range 20 {
			acquire(t, closing, fmt.Sprint("other-", i), forever)
		}
		time.Sleep(lock.DefaultTTL/4 + rand.N(lock.DefaultTTL/12))
		begun := time.Now()
		must(t, closing.Close())
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("close took %v", took)
		}
	})
}

// No lock depends on the queue. If the node that keeps it dies, the waiter notices and still gets the resource.
func TestAWaiterOutlivesItsHome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		holder, waiter := started(t, cfg), locker(t, cfg)
		lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
		home := nodes[holder.Home("r")]
		got := make(chan error, 1)
		go func() {
			_, err := waiter.Acquire(t.Context(), "r")
			got <- err
		}()
		synctest.Wait()
		if n := home.Client(t).ZCard(t.Context(), lock.DefaultKeyPrefix+":wait:r").Val(); n != 1 {
			t.Fatalf("%d wait at home", n)
		}
		home.Stop()
		release(t, lease)
		released := time.Now()
		must(t, <-got)
		if took := time.Since(released); took > 2*lock.Recheck+lock.Grace {
			t.Errorf("it waited for another %v", took)
		}
	})
}
