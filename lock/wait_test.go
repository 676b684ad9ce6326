package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

// queued is how many Lockers stand in a resource's queue on a node.
func queued(t *testing.T, cfg lock.Config, node int, resource string) int64 {
	t.Helper()
	prefix := prefixOf(cfg)
	if prefix == "" {
		prefix = lock.DefaultKeyPrefix
	}
	n, err := client(t, cfg.Nodes[node].Addr).ZCard(t.Context(), prefix+":wait:"+resource).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// queue has the waiters in a resource's queue on a node in memory, in their order, once everything has arrived.
func queue(t *testing.T, n *memredis.Node, resource string) []string {
	t.Helper()
	synctest.Wait()
	ids, err := n.Client(t).ZRange(t.Context(), lock.DefaultKeyPrefix+":wait:"+resource, 0, -1).Result()
	must(t, err)
	return ids
}

// handover is how long a waiter that is called may take: a node may get the release after the waiter's try, which is
// made again a few milliseconds later.
const handover = 20 * time.Millisecond

// handsOver releases a lease, and fails unless the waiter has it after some time at the most. It returns the waiter's
// lease.
func handsOver(t *testing.T, lease *lock.Lease, got <-chan outcome, within time.Duration) *lock.Lease {
	t.Helper()
	begun := time.Now()
	must(t, lease.Release(t.Context()))
	var next outcome
	select {
	case next = <-got:
	case <-time.After(time.Minute):
		t.Fatal("the waiter does not have it a minute after the release")
	}
	must(t, next.err)
	if took := time.Since(begun); took > within {
		t.Errorf("the waiter had it %v after the release; want at most %v", took, within)
	}
	return next.lease
}

// A hundred processes wait for one resource. Each release wakes one of them. If it woke all, a hundred acquisitions
// would take five thousand tries.
func TestAHundredWaitersCostAFewTriesEach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiters = 100
		cfg, nodes := inMemory(t, 3)
		holder := started(t, cfg)
		lease := leased(t, holder, "r", lock.WithTTL(lock.DefaultMaxTTL))
		lockers := make([]*lock.Locker, waiters)
		var all sync.WaitGroup
		for i := range lockers {
			lockers[i] = locker(t, cfg)
			all.Go(func() {
				lease, err := lockers[i].Acquire(t.Context(), "r")
				if err == nil {
					err = lease.Release(t.Context())
				}
				check(t, err)
			})
		}
		synctest.Wait()
		home := nodes[holder.Home("r")]
		if n := len(queue(t, home, "r")); n != waiters {
			t.Errorf("%d stand in the queue", n)
		}
		tries := func() (n int64) {
			for _, l := range lockers {
				n += l.Attempts()
			}
			return n
		}
		before, begun := tries(), time.Now()
		must(t, lease.Release(t.Context()))
		all.Wait()
		took := time.Since(begun)
		t.Logf("%d tries to join, %d to acquire %d times one after the other in %v", before, tries()-before, waiters, took)
		if n := tries() - before; n > 2*waiters || before != waiters {
			t.Errorf("%d tries to join, and %d for %d acquisitions", before, n, waiters)
		}
		if took > waiters*handover {
			t.Errorf("%d acquisitions took %v", waiters, took)
		}
		synctest.Wait()
		if left := queue(t, home, "r"); len(left) != 0 {
			t.Errorf("%d are left in the queue", len(left))
		}
	})
}

// A waiter that is not called looks again by itself after about a second.
func TestAReleaseWakesAWaiter(t *testing.T) {
	t.Parallel()
	groups(t, []int{1, 3, 5}, func(t *testing.T, cfg lock.Config, _ []*memredis.Node) {
		holder, other := started(t, cfg), locker(t, cfg)
		for _, waiter := range []*lock.Locker{holder, other} { // of the same process, and of another
			for _, release := range []func(*lock.Lease){
				func(lease *lock.Lease) { check(t, lease.Release(t.Context())) },
				(*lock.Lease).ReleaseAsync,
			} {
				lease := leased(t, holder, "r")
				got, before := waiting(t.Context(), waiter, "r"), waiter.Attempts()
				begun := time.Now()
				release(lease)
				next := <-got
				must(t, next.err)
				if took, tries := time.Since(begun), waiter.Attempts()-before; took > handover || tries > 3 {
					t.Errorf("%d tries within %v after the release", tries, took)
				}
				must(t, next.lease.Release(t.Context()))
				synctest.Wait()
			}
		}
	})
}

func TestAnotherNodeKeepsTheQueueWhenItsHomeIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		outlastDials(t)
		cfg, nodes := inMemory(t, 3)
		holder, waiter := started(t, cfg), locker(t, cfg)
		home := holder.Home("r")
		nodes[home].Stop()
		lease := leased(t, holder, "r")
		got := waiting(t.Context(), waiter, "r")
		if n := len(queue(t, nodes[(home+1)%3], "r")); n != 1 {
			t.Fatalf("%d wait at the second home", n)
		}
		handsOver(t, lease, got, handover)
	})
}

func TestAWaiterGoesBackToItsHome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		holder, waiter := started(t, cfg), locker(t, cfg)
		home := holder.Home("r")
		lease := leased(t, holder, "r")
		nodes[home].Freeze()
		got := waiting(t.Context(), waiter, "r")
		time.Sleep(5 * time.Second)
		if n := len(queue(t, nodes[(home+1)%3], "r")); n != 1 {
			t.Fatalf("%d wait at the second home", n)
		}
		nodes[home].Thaw()
		time.Sleep(5 * time.Second)
		if here, there := queue(t, nodes[home], "r"), queue(t, nodes[(home+1)%3], "r"); len(here) != 1 || len(there) != 0 {
			t.Errorf("%d wait at home, and %d at the second", len(here), len(there))
		}
		handsOver(t, lease, got, handover)
	})
}

// A waiter that gives up must not take a wake-up with it, and one that disappears must not delay those behind it for
// long.
func TestAWaiterThatIsGoneHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		holder, gone, last := started(t, cfg), locker(t, cfg), locker(t, cfg)
		lease := leased(t, holder, "r")
		home := nodes[holder.Home("r")]
		// The first in the queue is a waiter whose process has died.
		must(t, home.Client(t).ZAdd(t.Context(), lock.DefaultKeyPrefix+":wait:r", dead).Err())
		ctx, giveUp := context.WithCancel(t.Context())
		left := waiting(ctx, gone, "r")
		got := waiting(t.Context(), last, "r")
		if n := len(queue(t, home, "r")); n != 3 {
			t.Fatalf("%d wait", n)
		}
		giveUp()
		if err := (<-left).err; !errors.Is(err, context.Canceled) {
			t.Fatalf("the one that gave up: %v", err)
		}
		synctest.Wait()
		handsOver(t, lease, got, handover)
	})
}

// The lease ends while a waiter that was called gives up.
func TestAWaiterThatGivesUpPassesItsCallOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		holder, gone, last := started(t, cfg), locker(t, cfg), locker(t, cfg)
		lease := leased(t, holder, "r")
		ctx, giveUp := context.WithCancel(t.Context())
		left := waiting(ctx, gone, "r")
		got := waiting(t.Context(), last, "r")
		for _, n := range nodes {
			n.Replies.Close() // nobody acts on a call, until the first has given up
		}
		lease.ReleaseAsync()
		synctest.Wait()
		giveUp()
		<-left
		begun := time.Now()
		for _, n := range nodes {
			n.Replies.Open()
		}
		next := <-got
		must(t, next.err)
		if took := time.Since(begun); took > handover {
			t.Errorf("the next one had it after %v", took)
		}
	})
}

// Waiters that are gone leave nothing behind, even if the queue is never empty.
func TestWaitersThatAreGoneLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		holder, waiter := started(t, cfg), locker(t, cfg)
		lease := leased(t, holder, "r")
		home := nodes[holder.Home("r")]
		c := home.Client(t)
		// Waiters whose processes have died: a release removes them from the queue.
		for n := range 5 {
			gone := redis.Z{Score: dead.Score, Member: fmt.Sprintf("%v%d", dead.Member, n)}
			must(t, c.ZAdd(t.Context(), lock.DefaultKeyPrefix+":wait:r", gone).Err())
			must(t, c.HSet(t.Context(), lock.DefaultKeyPrefix+":seen:r", gone.Member, 0).Err())
		}
		must(t, c.Set(t.Context(), lock.DefaultKeyPrefix+":waiting", "", time.Minute).Err())
		must(t, lease.Release(t.Context()))
		synctest.Wait()
		if left := queue(t, home, "r"); len(left) != 0 {
			t.Fatalf("%d are left in the queue", len(left))
		}
		lease = leased(t, holder, "r")
		got := waiting(t.Context(), waiter, "r")
		if n := c.HLen(t.Context(), lock.DefaultKeyPrefix+":seen:r").Val(); n != 1 {
			t.Errorf("%d are noted, one waits", n)
		}
		handsOver(t, lease, got, handover)
	})
}

// A waiter that times out gets an error with the current holder, not the holder at the time of its call.
func TestAWaiterIsToldTheHolderOfTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		first, second, third := started(t, cfg), locker(t, cfg), locker(t, cfg)
		lease := leased(t, first, "r", lock.WithTTL(lock.DefaultMaxTTL), lock.WithHolder("one"))
		got := waiting(t.Context(), second, "r", lock.WithTTL(lock.DefaultMaxTTL), lock.WithHolder("two"))
		ctx, end := context.WithCancel(t.Context())
		answer := waiting(ctx, third, "r", lock.WithHolder("three"))
		handsOver(t, lease, got, handover)
		time.Sleep(time.Millisecond)
		late, endLate := context.WithTimeout(t.Context(), time.Millisecond) // another caller of the third one's process
		defer endLate()
		_, err := third.Acquire(late, "r", lock.WithHolder("four"))
		if held, ok := errors.AsType[*leasing.HeldError](err); !ok || held.Holder == "one" {
			t.Errorf("who came after the release gets %+v", held)
		}
		time.Sleep(2 * lock.Recheck) // the third has looked again
		end()
		if held, ok := errors.AsType[*leasing.HeldError]((<-answer).err); !ok || held.Holder != "two" {
			t.Errorf("who waited gets %+v", held)
		}
	})
}

// A node that missed a release has a lock that nobody else has. It does not hold up those who wait in its queue.
func TestALockThatOnlyTheHomeHasHoldsNoWaiterUp(t *testing.T) {
	t.Parallel()
	for name, ttl := range map[string]time.Duration{"with a TTL": time.Hour, "without one": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				holder, waiter := started(t, cfg), locker(t, cfg)
				lease := leased(t, holder, "r", lock.WithTTL(lock.DefaultMaxTTL))
				got := waiting(t.Context(), waiter, "r")
				another := strings.Repeat("a", 32) + "another"
				home := nodes[holder.Home("r")].Client(t)
				must(t, home.Set(t.Context(), lock.DefaultKeyPrefix+":lock:r", another, ttl).Err())
				before := waiter.Attempts()
				time.Sleep(4 * lock.Recheck) // it looks at least twice
				if n := waiter.Attempts() - before; n != 0 {
					t.Errorf("%d attempts while a quorum has the lock", n)
				}
				handsOver(t, lease, got, 2*lock.Recheck+handover)
			})
		})
	}
}

// sameHome is n names of resources that have their home where the first has it.
func sameHome(l *lock.Locker, first string, n int) []string {
	names := []string{first}
	for i := 0; len(names) < n; i++ {
		if name := fmt.Sprintf("%s%d", first, i); l.Home(name) == l.Home(first) {
			names = append(names, name)
		}
	}
	return names
}
