package lock_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

// crowd has callers of one process wait, each for a resource of its own that another process holds.
type crowd struct {
	nodes  []*memredis.Node
	waiter *lock.Locker
	names  []string
	leases []*lock.Lease
	got    []<-chan outcome
}

// gather lets n callers wait, in the queues of nodes that take some time to answer.
func gather(t *testing.T, n int) *crowd {
	t.Helper()
	cfg, nodes := inMemory(t, 3)
	c := &crowd{nodes: nodes, waiter: locker(t, cfg)}
	holder := started(t, cfg)
	for i := range n {
		c.names = append(c.names, fmt.Sprintf("job/%d", i))
		c.leases = append(c.leases, acquire(t, holder, c.names[i], lock.WithTTL(lock.DefaultMaxTTL)))
	}
	for _, n := range nodes {
		n.Requests.Delay(func() time.Duration { return lock.DefaultNodeTimeout / 5 })
	}
	for _, name := range c.names {
		c.got = append(c.got, waiting(t.Context(), c.waiter, name))
	}
	return c
}

// places is how many wait in the queues of their homes, or of the nodes after them.
func (c *crowd) places(t *testing.T, after int) (n int) {
	t.Helper()
	for _, name := range c.names {
		n += len(queue(t, c.nodes[(c.waiter.Home(name)+after)%3], name))
	}
	return n
}

// handOver releases all leases, and fails unless each waiter has its own soon.
func (c *crowd) handOver(t *testing.T, within time.Duration) {
	t.Helper()
	var all sync.WaitGroup
	for i, lease := range c.leases {
		all.Go(func() {
			begun := time.Now()
			check(t, lease.Release(t.Context()))
			next := <-c.got[i]
			check(t, next.err)
			if took := time.Since(begun); took > within {
				t.Errorf("the waiter for %s had it %v after the release", c.names[i], took)
			}
		})
		time.Sleep(time.Millisecond)
	}
	all.Wait()
}

// A look shares the connection and the patience of acquisitions. With some connections of its own, looks waited for one
// of these, and a look that was late took every waiter out of its queue.
func TestManyWaitersOfAProcessKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := gather(t, 300)
		time.Sleep(2 * time.Second) // each has looked again
		if n := c.places(t, 0); n != len(c.names) {
			t.Errorf("%d of %d are in the queues", n, len(c.names))
		}
		if n := c.waiter.Attempts(); n != int64(len(c.names)) {
			t.Errorf("%d attempts of %d waiters", n, len(c.names))
		}
		c.handOver(t, 2*lock.DefaultNodeTimeout)
	})
}

// The first look that finds a home silent is enough for all, so they do not try to acquire.
func TestManyWaitersGoOverToTheSecondHomeInGoodOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := gather(t, 300)
		time.Sleep(2 * time.Second)
		frozen := c.nodes[0]
		frozen.Freeze()
		time.Sleep(3 * time.Second)
		var at []string
		for _, name := range c.names {
			if c.waiter.Home(name) == 0 {
				at = append(at, name)
			}
		}
		c.names = at
		if n := c.places(t, 1); n != len(at) {
			t.Errorf("%d of %d are in the queues of the second home", n, len(at))
		}
		if n := c.waiter.Attempts(); n != int64(len(c.leases)) {
			t.Errorf("%d attempts of %d waiters", n, len(c.leases))
		}
		frozen.Thaw()
	})
}
