package lock_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func fields(t *testing.T, c *redis.Client, prefix string) int64 {
	t.Helper()
	n, err := c.HLen(t.Context(), prefix+":h").Result()
	must(t, err)
	return n
}

// ownFields are the fields other than the counters: the incarnation, its base, the longest TTL, a note and the reign.
const ownFields = 5

// used is the memory of a node, in bytes.
func used(t *testing.T, c *redis.Client) int64 {
	t.Helper()
	info, err := c.Info(t.Context(), "memory").Result()
	must(t, err)
	var n int64
	_, rest, _ := strings.Cut(info, "used_memory:")
	_, err = fmt.Sscan(rest, &n)
	must(t, err)
	return n
}

func TestSweepingDeletesCountersAndTokensStillRise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		tokens := make(map[string]fence.Token)
		for i := range 20 {
			name := fmt.Sprint("r", i)
			for range 1 + i%4 {
				lease := acquireOnAll(t, l, name)
				tokens[name] = token(t, lease)
				release(t, lease)
			}
		}
		held := acquireOnAll(t, l, "held")
		n, err := admin.Of(l).Sweep(t.Context())
		must(t, err)
		if n != 21*len(nodes) {
			t.Errorf("swept %d counters", n)
		}
		for i, node := range nodes {
			if left := fields(t, node.Client(t), lock.DefaultKeyPrefix); left != ownFields+1 { // the longest TTL of a lease
				t.Errorf("node %d: %d fields are left", i+1, left)
			}
		}
		must(t, held.Extend(t.Context(), time.Minute)) // a lease survives it
		for name, before := range tokens {
			lease := acquire(t, l, name)
			if got := token(t, lease); got <= before {
				t.Errorf("%s: token %d after %d", name, got, before)
			}
			release(t, lease)
		}
		release(t, held)
	})
}

// Sweeps run at any moment of an acquisition. A sweep that deleted a counter above the base would cause a duplicate
// token here.
func TestTokensStayUniqueAndRiseWhileCountersAreSwept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		for _, n := range nodes { // messages overtake each other
			n.Requests.Delay(func() time.Duration { return rand.N(10 * time.Millisecond) })
		}
		var mu sync.Mutex
		var entries []torture.Hold
		var workers sync.WaitGroup
		var stop atomic.Bool
		for range 3 {
			other := locker(t, cfg)
			workers.Go(func() {
				for !stop.Load() {
					begun := time.Now()
					lease, err := other.Acquire(t.Context(), "r")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					entries = append(entries, holdOf(begun, time.Now(), lease.Ref().Token))
					mu.Unlock()
					_ = lease.Release(t.Context())
				}
			})
		}
		for begun := time.Now(); time.Since(begun) < 1500*time.Millisecond; {
			_, err := admin.Of(l).Sweep(t.Context())
			must(t, err)
		}
		stop.Store(true)
		workers.Wait()
		duplicates, inversions := torture.Tokens(entries)
		t.Logf("%d acquisitions", len(entries))
		if duplicates != 0 || inversions != 0 || len(entries) < 50 {
			t.Errorf("%d acquisitions: %d duplicates, %d inversions", len(entries), duplicates, inversions)
		}
	})
}

// Resources that were used once leave a bounded amount of memory.
func TestManyResourcesUsedOnceLeaveAlmostNothing(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	l := started(t, cfg)
	c := client(t, servers[0].Addr)
	empty := used(t, c)
	const counters = 200_000
	for i := range counters / 50_000 { // what as many acquisitions leave, written at once
		must(t, c.Eval(t.Context(), `for i = 1, 50000 do
			redis.call('HSET', KEYS[1], 'c:jobs/' .. string.format('%d', ARGV[1] * 50000 + i), '1')
		end return 1`, []string{prefixOf(cfg) + ":h"}, i).Err())
	}
	full, before := used(t, c), scripts(t, c)
	begun := time.Now()
	n, err := admin.Of(l).Sweep(t.Context())
	must(t, err)
	took := time.Since(begun)
	// Redis frees the table's buckets (2 MB) gradually as the hash is used.
	eventually(t, 20*time.Second, "the memory is free", func() bool { return used(t, c)-empty < 3<<20 })
	t.Logf("swept %d counters in %v: %.1f MB before, %.1f MB after", n, took, float64(full-empty)/(1<<20), float64(used(t, c)-empty)/(1<<20))
	if n < counters {
		t.Errorf("swept %d", n)
	}
	// Redis serves nobody else during a page. Both passes go by pages of about 2,000.
	if pages := scripts(t, c) - before; pages < 2*counters/5000 {
		t.Errorf("%d scripts ran: a page had %d counters on average", pages, 2*counters/pages)
	}
}

// scripts is how many scripts a node has run by their hash.
func scripts(t *testing.T, c *redis.Client) int64 {
	t.Helper()
	info, err := c.Info(t.Context(), "commandstats").Result()
	must(t, err)
	_, rest, _ := strings.Cut(info, "cmdstat_evalsha:calls=")
	var n int64
	_, err = fmt.Sscan(rest, &n)
	must(t, err)
	return n
}

// A sweep does not have to be requested, and also happens if each process makes only a few tries.
func TestLockersThatDoNotLiveLongSweepTogether(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	lease := acquire(t, started(t, cfg), "first")
	first := token(t, lease)
	release(t, lease)
	c := client(t, servers[0].Addr)
	for i := range 3 { // more counters than a node may keep
		must(t, c.Eval(t.Context(), `for i = 1, 40000 do
			redis.call('HSET', KEYS[1], 'c:jobs/' .. string.format('%d', ARGV[1] * 40000 + i), '1')
		end return 1`, []string{prefixOf(cfg) + ":h"}, i).Err())
	}
	eventually(t, time.Minute, "the counters are swept", func() bool {
		l := locker(t, cfg)
		l.SweepEvery(16)
		for range 4 {
			release(t, acquire(t, l, "r"))
		}
		return fields(t, c, prefixOf(cfg)) < 20
	})
	if got := token(t, acquire(t, locker(t, cfg), "first")); got <= first {
		t.Errorf("token %d after %d", got, first)
	}
}
