package lock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/lock"
)

// A waiter's tries get the lock of a home that has none, and give it back, which calls the first of the queue. It tried
// some 200 times a second then, for as long as the lease lasted.
func TestAWaiterThatCallsItselfTriesLessAndLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		for _, n := range nodes {
			n.Requests.Delay(func() time.Duration { return time.Millisecond })
		}
		holder, waiter := started(t, cfg), locker(t, cfg)
		lease, err := holder.Acquire(t.Context(), "r", lock.WithTTL(lock.DefaultTTL))
		must(t, err)
		begun := time.Now()
		home := nodes[holder.Home("r")].Client(t)
		must(t, home.Del(t.Context(), lock.DefaultKeyPrefix+":lock:r").Err())
		next, err := waiter.Acquire(t.Context(), "r")
		must(t, err)
		if waited := time.Since(begun); waited < lock.DefaultTTL-time.Second || waited > lock.DefaultTTL+2*time.Second {
			t.Errorf("it waited for %v", waited)
		}
		if tries := waiter.Attempts(); tries > 8*int64(lock.DefaultTTL/time.Second) {
			t.Errorf("it tried %d times", tries)
		}
		if token(t, next) <= lease.Ref().Token {
			t.Error("its token is not higher")
		}
	})
}
