package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// queued is how many Lockers stand in a resource's queue on a node.
func queued(t *testing.T, cfg lock.Config, node int, resource string) int64 {
	t.Helper()
	prefix := cfg.KeyPrefix
	if prefix == "" {
		prefix = lock.DefaultKeyPrefix
	}
	n, err := client(t, cfg.Nodes[node].Addr).ZCard(t.Context(), prefix+":wait:"+resource).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A hundred processes wait for one resource. Each release wakes one of them. If it woke all, a hundred acquisitions
// would take five thousand tries.
func TestAHundredWaitersCostAFewTriesEach(t *testing.T) {
	t.Parallel()
	const waiters = 100
	cfg := shared(t, 3)
	holder := started(t, cfg)
	lease := acquire(t, holder, "r", lock.WithTTL(lock.DefaultMaxTTL))
	lockers := make([]*lock.Locker, waiters)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range lockers {
		lockers[i] = locker(t, cfg)
		all.Go(func() {
			lease, err := lockers[i].Acquire(ctx, "r", lock.WithTTL(time.Minute))
			if err == nil {
				err = lease.Release(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	home := holder.Home("r")
	eventually(t, time.Minute, "all stand in the queue", func() bool { return queued(t, cfg, home, "r") == waiters })
	var before, after int64
	for _, l := range lockers {
		before += l.Attempts()
	}
	begun := time.Now()
	release(t, lease)
	all.Wait()
	took := time.Since(begun)
	for _, l := range lockers {
		after += l.Attempts()
	}
	t.Logf("%d tries to join, %d to acquire %d times one after the other in %v", before, after-before, waiters, took)
	// Where a release is late on some of the nodes, the waiter that was called tries again; see handOff.
	if few := 4*waiters + int64(took/(31*time.Millisecond)); after-before > few {
		t.Errorf("%d tries for %d acquisitions; want at most %d", after-before, waiters, few)
	}
	eventually(t, 10*time.Second, "the queue is empty", func() bool { return queued(t, cfg, home, "r") == 0 })
}

func TestAReleaseWakesAWaiterOfAnotherProcess(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3, 5}, func(t *testing.T, cfg lock.Config) {
		holder := started(t, cfg)
		waiter := locker(t, cfg)
		// A waiter that is not called looks again by itself after about a second. One hand-off that is faster shows
		// that it was called.
		fastest := time.Hour
		for tries := 0; fastest > lock.Recheck/2 && tries < 10; tries++ {
			lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
			got := make(chan *lock.Lease)
			go func() {
				next, err := waiter.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
				if err != nil {
					t.Error(err)
				}
				got <- next
			}()
			eventually(t, 10*time.Second, "it waits", func() bool { return queued(t, cfg, waiter.Home("r"), "r") == 1 })
			took := handOff(t, lease, waiter, got)
			fastest = min(fastest, took)
		}
		if fastest > lock.Recheck/2 {
			t.Errorf("the fastest of the hand-offs took %v", fastest)
		}
	})
}

// handOff releases a lease that the waiter waits for, and then the waiter's lease.
func handOff(t *testing.T, lease *lock.Lease, waiter *lock.Locker, got <-chan *lock.Lease) (took time.Duration) {
	t.Helper()
	before, begun := waiter.Attempts(), time.Now()
	release(t, lease)
	release(t, <-got)
	took = time.Since(begun)
	// If the release is late on some of the nodes, the waiter tries again, at growing intervals: soon every 31 ms at
	// most.
	if tries, few := waiter.Attempts()-before, 10+int64(took/(31*time.Millisecond)); tries > few {
		t.Errorf("%d tries within %v after the release; want at most %d", tries, took, few)
	}
	return took
}

func TestAnotherNodeKeepsTheQueueWhenItsHomeIsDown(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	holder := started(t, cfg)
	waiter := locker(t, cfg)
	home := holder.Home("r")
	must(t, servers[home].Kill())
	lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
	got := make(chan *lock.Lease)
	go func() {
		next, err := waiter.Acquire(t.Context(), "r")
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	second := (home + 1) % 3
	eventually(t, 10*time.Second, "it waits at the second home", func() bool { return queued(t, cfg, second, "r") == 1 })
	handOff(t, lease, waiter, got)
}

// A waiter that gives up must not take a wake-up with it, and one that disappears must not delay those behind it for
// long.
func TestAWaiterThatIsGoneHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	holder := started(t, cfg)
	lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
	home := holder.Home("r")
	// The first in the queue is a waiter whose process has died.
	c, queue := client(t, cfg.Nodes[home].Addr), cfg.KeyPrefix+":wait:r"
	must(t, c.ZAdd(t.Context(), queue, dead).Err())
	wait := func(n int) func() bool { // beside the dead one, which is out after some seconds
		return func() bool {
			stand := c.ZRange(t.Context(), queue, 0, -1).Val()
			return len(slices.DeleteFunc(stand, func(id string) bool { return id == dead.Member })) == n
		}
	}
	gone := locker(t, cfg)
	ctx, giveUp := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := gone.Acquire(ctx, "r")
		left <- err
	}()
	eventually(t, 10*time.Second, "it waits", wait(1))
	last := locker(t, cfg)
	got := make(chan *lock.Lease)
	go func() {
		next, err := last.Acquire(t.Context(), "r")
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	eventually(t, 10*time.Second, "both wait", wait(2))
	giveUp()
	if err := <-left; err == nil {
		t.Fatal("the one that gave up has it")
	}
	handOff(t, lease, last, got)
}

// Waiters that are gone leave nothing behind, even if the queue is never empty.
func TestWaitersThatAreGoneLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	holder := started(t, cfg)
	lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
	home := holder.Home("r")
	c := client(t, cfg.Nodes[home].Addr)
	// Waiters whose processes have died: a release removes them from the queue.
	for n := range 5 {
		gone := dead
		gone.Member = fmt.Sprintf("%v%d", dead.Member, n)
		must(t, c.ZAdd(t.Context(), cfg.KeyPrefix+":wait:r", gone).Err())
		must(t, c.HSet(t.Context(), cfg.KeyPrefix+":seen:r", gone.Member, 0).Err())
	}
	must(t, c.Set(t.Context(), cfg.KeyPrefix+":waiting", "", time.Minute).Err())
	release(t, lease)
	eventually(t, 10*time.Second, "the queue is empty", func() bool { return queued(t, cfg, home, "r") == 0 })
	lease = acquire(t, holder, "r", lock.WithTTL(time.Minute))
	got := make(chan *lock.Lease)
	waiter := locker(t, cfg)
	go func() {
		next, err := waiter.Acquire(t.Context(), "r")
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	eventually(t, 10*time.Second, "one waits", func() bool { return queued(t, cfg, home, "r") == 1 })
	if n := c.HLen(t.Context(), cfg.KeyPrefix+":seen:r").Val(); n != 1 {
		t.Errorf("%d are noted, one waits", n)
	}
	handOff(t, lease, waiter, got)
}

// A waiter that times out gets an error with the current holder, not the holder at the time of its call.
func TestAWaiterIsToldTheHolderOfTheEnd(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	first := started(t, cfg)
	lease := acquire(t, first, "r", lock.WithTTL(lock.DefaultMaxTTL), lock.WithHolder("one"))
	second, third := locker(t, cfg), locker(t, cfg)
	got := make(chan error, 1)
	go func() {
		_, err := second.Acquire(t.Context(), "r", lock.WithTTL(lock.DefaultMaxTTL), lock.WithHolder("two"))
		got <- err
	}()
	home := first.Home("r")
	eventually(t, time.Minute, "the second waits", func() bool { return queued(t, cfg, home, "r") == 1 })
	ctx, end := context.WithCancel(t.Context())
	told, behind := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := third.Acquire(ctx, "r", lock.WithHolder("three"))
		told <- err
	}()
	eventually(t, time.Minute, "the third waits", func() bool { return queued(t, cfg, home, "r") == 2 })
	release(t, lease)
	must(t, <-got)
	late, endLate := context.WithTimeout(t.Context(), time.Millisecond) // another caller of the third one's process
	defer endLate()
	go func() {
		_, err := third.Acquire(late, "r", lock.WithHolder("four"))
		behind <- err
	}()
	if held, ok := errors.AsType[*leasing.HeldError](<-behind); !ok || held.Holder == "one" {
		t.Errorf("who came after the release is told %+v", held)
	}
	eventually(t, time.Minute, "the third has looked again", func() bool { return third.Waits("r") == "two" })
	end()
	if held, ok := errors.AsType[*leasing.HeldError](<-told); !ok || held.Holder != "two" {
		t.Errorf("who waited is told %+v", held)
	}
}

// A node that missed a release has a lock that nobody else has. It does not hold up those who wait in its queue.
func TestALockThatOnlyTheHomeHasHoldsNoWaiterUp(t *testing.T) {
	t.Parallel()
	for name, ttl := range map[string]time.Duration{"with a TTL": time.Hour, "without one": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := shared(t, 3)
			holder := started(t, cfg)
			home := holder.Home("r")
			lease := acquireEverywhere(t, holder, "r", lock.WithTTL(lock.DefaultMaxTTL))
			waiter := locker(t, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			got := make(chan error)
			go func() {
				_, err := waiter.Acquire(ctx, "r", lock.WithTTL(lock.DefaultMaxTTL))
				got <- err
			}()
			eventually(t, 10*time.Second, "it waits", func() bool { return queued(t, cfg, home, "r") == 1 })
			another := strings.Repeat("a", 32) + "another"
			must(t, client(t, cfg.Nodes[home].Addr).Set(t.Context(), cfg.KeyPrefix+":lock:r", another, ttl).Err())
			before := waiter.Attempts()
			eventually(t, 30*time.Second, "it has looked twice", looked(t, cfg, home, 2))
			if n := waiter.Attempts() - before; n != 0 {
				t.Errorf("%d attempts while a quorum has the lock", n)
			}
			release(t, lease)
			if err := <-got; err != nil {
				t.Error(err)
			}
		})
	}
}

// looked reports whether the first in r's queue has looked at it several times more.
func looked(t *testing.T, cfg lock.Config, node, times int) func() bool {
	t.Helper()
	c, last := client(t, cfg.Nodes[node].Addr), ""
	return func() bool {
		seen, err := c.HVals(t.Context(), cfg.KeyPrefix+":seen:r").Result()
		must(t, err)
		if now := strings.Join(seen, " "); now != last {
			last = now
			times--
		}
		return times < 0
	}
}

// A node that has not answered when its caller's time is over is not down for this process's other callers.
func TestACallersOwnDeadlineTakesNoOtherWaiterOutOfItsQueue(t *testing.T) {
	t.Parallel()
	for _, subscribed := range []bool{true, false} {
		t.Run(fmt.Sprintf("subscribed: %t", subscribed), func(t *testing.T) {
			t.Parallel()
			cfg := shared(t, 3)
			holder := started(t, cfg)
			home := holder.Home("r")
			names := sameHome(holder, "r", 3)
			for _, name := range names {
				acquire(t, holder, name, lock.WithTTL(lock.DefaultMaxTTL))
			}
			slow := newRelay(t, cfg.Nodes[home].Addr)
			through := cfg
			through.Nodes = slices.Clone(cfg.Nodes)
			through.Nodes[home].Addr = slow.addr
			l := locker(t, through)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			wait := func(name string) {
				before := l.Attempts()
				all.Go(func() { _, _ = l.Acquire(ctx, name) })
				eventually(t, 10*time.Second, "it waits", func() bool { return queued(t, cfg, home, name) == 1 })
				if n := l.Attempts() - before; n > 4 { // one, and more on a busy machine
					t.Errorf("%d attempts for %s", n, name)
				}
			}
			if subscribed {
				wait(names[0])
			}
			slow.replies.close()
			short, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer end()
			if _, err := l.Acquire(short, names[1]); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			slow.replies.open()
			wait(names[2])
			eventually(t, 10*time.Second, "the one that gave up has left", func() bool { return queued(t, cfg, home, names[1]) == 0 })
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
