package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

// subscriptions is how many Lockers listen to a node's calls.
func subscriptions(t *testing.T, n *memredis.Node) int {
	t.Helper()
	synctest.Wait()
	channels, err := n.Client(t).PubSubChannels(t.Context(), "*").Result()
	must(t, err)
	return len(channels)
}

// atHome is the first of the names whose queue this node keeps.
func atHome(l *lock.Locker, node int) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("r%d", i); l.Home(name) == node {
			return name
		}
	}
}

// A node that does not answer costs one waiter the node timeout, and those after it nothing.
func TestASilentNodeHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	for _, subscribed := range []bool{true, false} {
		t.Run(fmt.Sprintf("subscribed: %t", subscribed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				holder, l := started(t, cfg), locker(t, cfg)
				home := holder.Home("r")
				second, third := nodes[(home+1)%3], atHome(l, (home+2)%3)
				names := sameHome(l, "r", 2)
				held, behind, elsewhere := leased(t, holder, names[0]), leased(t, holder, names[1]), leased(t, holder, third)
				if subscribed {
					ctx, cancel := context.WithCancel(t.Context())
					got := waiting(ctx, l, names[0])
					cancel()
					<-got
				}
				nodes[home].Freeze()
				first, other := waiting(t.Context(), l, names[0]), waiting(t.Context(), l, third)
				if n := len(queue(t, nodes[(home+2)%3], third)); n != 1 {
					t.Errorf("%d stand in the queue of a node that answers", n)
				}
				time.Sleep(lock.DefaultNodeTimeout)
				if n := len(queue(t, second, names[0])); n != 1 {
					t.Errorf("%d stand in the queue at the second home", n)
				}
				next := waiting(t.Context(), l, names[1])
				if n := len(queue(t, second, names[1])); n != 1 {
					t.Errorf("%d stand in the queue at the second home at once", n)
				}
				// It waits behind the first.
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				last := <-waiting(ctx, l, names[0])
				if last.after != 5*time.Second || !errors.Is(last.err, lock.ErrHeld) {
					t.Errorf("a caller with five seconds: after %v: %v", last.after, last.err)
				}
				begun := time.Now()
				if _, err := l.TryAcquire(t.Context(), names[0]); !errors.Is(err, lock.ErrHeld) || time.Since(begun) != 0 {
					t.Errorf("a try: after %v: %v", time.Since(begun), err)
				}
				// A try that is too early waits for the silent node, and a waiter may be asking whether it is there again.
				handsOver(t, elsewhere, other, lock.DefaultNodeTimeout+handover)
				handsOver(t, held, first, lock.DefaultNodeTimeout+handover)
				handsOver(t, behind, next, lock.DefaultNodeTimeout+handover)
			})
		})
	}
}

// A node that has not answered when its caller's time is over is not down for this process's other callers.
func TestACallersOwnDeadlineTakesNoOtherWaiterOutOfItsQueue(t *testing.T) {
	t.Parallel()
	for _, subscribed := range []bool{true, false} {
		t.Run(fmt.Sprintf("subscribed: %t", subscribed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				holder, l := started(t, cfg), locker(t, cfg)
				home := nodes[holder.Home("r")]
				names := sameHome(holder, "r", 3)
				for _, name := range names {
					leased(t, holder, name)
				}
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stands := func(name string) {
					t.Helper()
					before := l.Attempts()
					waiting(ctx, l, name)
					if n := len(queue(t, home, name)); n != 1 {
						t.Errorf("%d stand in the queue for %s", n, name)
					}
					if n := l.Attempts() - before; n != 1 {
						t.Errorf("%d attempts for %s", n, name)
					}
				}
				if subscribed {
					stands(names[0])
				}
				home.Replies.Close()
				const patience = lock.DefaultNodeTimeout / 2
				short, end := context.WithTimeout(t.Context(), patience)
				defer end()
				if gone := <-waiting(short, l, names[1]); !errors.Is(gone.err, context.DeadlineExceeded) || gone.after != patience {
					t.Errorf("after %v: %v", gone.after, gone.err)
				}
				home.Replies.Open()
				stands(names[2])
				if n := len(queue(t, home, names[1])); n != 0 {
					t.Errorf("%d stand in the queue for %s", n, names[1])
				}
			})
		})
	}
}

// loseSubscription cuts the connection of the node's only subscription.
func loseSubscription(t *testing.T, n *memredis.Node) {
	t.Helper()
	c := n.Client(t)
	channels := c.PubSubChannels(t.Context(), "*").Val()
	if len(channels) != 1 {
		t.Fatalf("subscribed to %v", channels)
	}
	n.Replies.Lose(1)
	must(t, c.Publish(t.Context(), channels[0], "nothing").Err())
	if left := subscriptions(t, n); left != 0 || n.Replies.Lost() == 0 {
		t.Fatalf("%d subscriptions are left", left)
	}
}

func TestASubscriptionThatEndsIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(t *testing.T, l *lock.Locker, another string){
		"by the next waiter":                             func(t *testing.T, l *lock.Locker, another string) { waiting(t.Context(), l, another) },
		"by the same waiter, when it looks at its place": func(*testing.T, *lock.Locker, string) { time.Sleep(2 * lock.Recheck) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				holder, l := started(t, cfg), locker(t, cfg)
				names := sameHome(holder, "r", 2)
				lease, other := leased(t, holder, names[0]), leased(t, holder, names[1])
				got := waiting(t.Context(), l, names[0])
				home := nodes[holder.Home("r")]
				loseSubscription(t, home)
				again(t, l, names[1])
				if n := subscriptions(t, home); n != 1 {
					t.Fatalf("%d subscriptions", n)
				}
				handsOver(t, lease, got, handover)
				must(t, other.Release(t.Context()))
			})
		})
	}
}

// A release takes a waiter that does not listen out of the queue. It looks again by itself.
func TestAReleaseWhileASubscriptionIsLostIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		holder, l := started(t, cfg), locker(t, cfg)
		lease := leased(t, holder, "r")
		got := waiting(t.Context(), l, "r")
		loseSubscription(t, nodes[holder.Home("r")])
		handsOver(t, lease, got, 2*lock.Recheck+handover)
	})
}

// A connection may be half open. A subscription that is silent for three seconds is asked for a sign of life, and one
// that does not answer for a second is dropped.
func TestASilentSubscriptionIsAskedForASignOfLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Unwatched()
		holder, l := started(t, cfg), locker(t, cfg)
		leased(t, holder, "r", lock.WithTTL(lock.DefaultMaxTTL))
		ctx, cancel := context.WithCancel(t.Context())
		got := waiting(ctx, l, "r")
		cancel()
		<-got
		synctest.Wait()
		var asked atomic.Int64
		nodes[0].Requests.Delay(func() time.Duration { asked.Add(1); return 0 })
		time.Sleep(30*time.Second + time.Millisecond)
		if n := asked.Load(); n != 10 {
			t.Errorf("%d requests within 30 s", n)
		}
		if n := subscriptions(t, nodes[0]); n != 1 {
			t.Errorf("%d subscriptions to a node that answers", n)
		}
		nodes[0].Replies.Close()
		time.Sleep(4*time.Second - 2*time.Millisecond)
		if n := subscriptions(t, nodes[0]); n != 1 {
			t.Errorf("%d subscriptions before the node's time is over", n)
		}
		time.Sleep(2 * time.Millisecond)
		if n := subscriptions(t, nodes[0]); n != 0 {
			t.Errorf("%d subscriptions to a node that is silent", n)
		}
		nodes[0].Replies.Open()
	})
}

func TestNothingIsSubscribedAfterClose(t *testing.T) {
	t.Parallel()
	for _, pending := range []bool{false, true} {
		t.Run(fmt.Sprintf("in progress: %t", pending), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				cfg.Unwatched()
				holder, l := started(t, cfg), locker(t, cfg)
				home := nodes[holder.Home("r")]
				leased(t, holder, "r")
				if pending {
					home.Replies.Close()
				}
				got := waiting(t.Context(), l, "r")
				begun := time.Now()
				must(t, l.Close())
				if took := time.Since(begun); took > time.Second || took > 0 && !pending {
					t.Errorf("Close took %v", took)
				}
				if err := (<-got).err; !errors.Is(err, lock.ErrClosed) {
					t.Errorf("the waiter: %v", err)
				}
				home.Replies.Open()
				if n := subscriptions(t, home); n != 0 {
					t.Errorf("%d subscriptions", n)
				}
				must(t, holder.Close()) // it looks at the nodes
				before := home.Connections()
				if _, err := l.Acquire(t.Context(), "r"); !errors.Is(err, lock.ErrClosed) {
					t.Errorf("acquire: %v", err)
				}
				time.Sleep(time.Minute)
				if n := subscriptions(t, home); n != 0 || home.Connections()-before > 2 { // two are of this test
					t.Errorf("%d subscriptions, %d connections were made", n, home.Connections()-before)
				}
			})
		})
	}
}
