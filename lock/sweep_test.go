package lock_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

func fields(t *testing.T, c *redis.Client, prefix string) int64 {
	t.Helper()
	n, err := c.HLen(t.Context(), prefix+":h").Result()
	must(t, err)
	return n
}

// ownFields are the fields other than the counters: the incarnation, its base, the longest TTL and a note.
const ownFields = 4

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
	backends(t, []int{1, 3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		tokens := make(map[string]fence.Token)
		for i := range 40 {
			name := fmt.Sprint("r", i)
			for range 1 + i%4 {
				lease := acquire(t, l, name)
				tokens[name] = token(t, lease)
				release(t, lease)
			}
		}
		held := acquireEverywhere(t, l, "held", lock.WithTTL(lock.DefaultMaxTTL))
		prefix := cfg.KeyPrefix
		if prefix == "" {
			prefix = lock.DefaultKeyPrefix
		}
		const names = 41
		for _, node := range cfg.Nodes { // a quorum has them; other nodes may be behind
			c := client(t, node.Addr)
			eventually(t, 20*time.Second, node.Name+" has counted all", func() bool {
				for name := range tokens {
					if !c.HExists(t.Context(), prefix+":h", "c:"+name).Val() { // or its message came too late
						lease := acquire(t, l, name)
						tokens[name] = token(t, lease)
						release(t, lease)
					}
				}
				return fields(t, c, prefix) >= names+ownFields
			})
		}
		n, err := sweep(t, l)
		must(t, err)
		if want := names * len(cfg.Nodes); n < want-2*len(cfg.Nodes) {
			t.Errorf("swept %d counters; want about %d", n, want)
		}
		for _, node := range cfg.Nodes {
			if left := fields(t, client(t, node.Addr), prefix); left > 8 {
				t.Errorf("%s: %d fields are left", node.Name, left)
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
	cfg := shared(t, 3)
	l := started(t, cfg)
	var mu sync.Mutex
	var entries []acquisition
	var workers sync.WaitGroup
	var stop atomic.Bool
	for range 3 {
		other := locker(t, cfg)
		workers.Go(func() {
			for !stop.Load() {
				begun := time.Now()
				lease, err := other.Acquire(t.Context(), "r")
				if err != nil {
					continue
				}
				mu.Lock()
				entries = append(entries, acquisition{begun, time.Now(), lease.Ref().Token})
				mu.Unlock()
				_ = lease.Release(t.Context())
			}
		})
	}
	defer workers.Wait()
	defer stop.Store(true)
	acquired := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(entries)
	}
	sweeps := 0
	for begun := time.Now(); acquired() < 20 || sweeps < 5 || time.Since(begun) < 1500*time.Millisecond; sweeps++ {
		_, err := sweep(t, l)
		must(t, err)
		if time.Since(begun) > time.Minute {
			t.Fatalf("only %d acquisitions and %d sweeps", acquired(), sweeps)
		}
	}
	stop.Store(true)
	workers.Wait()
	duplicates, inversions := verify(entries)
	t.Logf("%d acquisitions, %d sweeps", len(entries), sweeps)
	if duplicates != 0 || inversions != 0 {
		t.Errorf("%d duplicates, %d inversions", duplicates, inversions)
	}
}

// A million resources that were used once leave a bounded amount of memory.
func TestAMillionResourcesUsedOnceLeaveAlmostNothing(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	l := started(t, cfg)
	c := client(t, servers[0].Addr)
	empty := used(t, c)
	// The counters that a million acquisitions leave, written in a second.
	for i := range 20 {
		must(t, c.Eval(t.Context(), `for i = 1, 50000 do
			redis.call('HSET', KEYS[1], 'c:jobs/' .. string.format('%d', ARGV[1] * 50000 + i), '1')
		end return 1`, []string{cfg.KeyPrefix + ":h"}, i).Err())
	}
	full, before := used(t, c), scripts(t, c)
	begun := time.Now()
	n, err := sweep(t, l)
	must(t, err)
	took := time.Since(begun)
	// Redis frees the table's buckets (8 MB) gradually as the hash is used.
	eventually(t, 20*time.Second, "the memory is free", func() bool { return used(t, c)-empty < 12<<20 })
	t.Logf("swept %d counters in %v: %.1f MB before, %.1f MB after", n, took, float64(full-empty)/(1<<20), float64(used(t, c)-empty)/(1<<20))
	if n < 1_000_000 {
		t.Errorf("swept %d", n)
	}
	// Redis serves nobody else during a page. Both passes go by pages of about 2,000.
	if pages := scripts(t, c) - before; pages < 2*1_000_000/5000 {
		t.Errorf("%d scripts ran: a page had %d counters on average", pages, 2*1_000_000/pages)
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

// A sweep does not have to be requested.
func TestALockerSweepsByItself(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	l := started(t, cfg)
	first := token(t, acquire(t, l, "r", lock.WithTTL(50*time.Millisecond)))
	c := client(t, servers[0].Addr)
	manyCounters(t, c, cfg.KeyPrefix)
	next := locker(t, cfg)
	next.SweepEvery(1)
	lease := acquire(t, next, "r")
	if got := token(t, lease); got <= first {
		t.Errorf("token %d after %d", got, first)
	}
	eventually(t, 30*time.Second, "the counters are swept", func() bool {
		release(t, acquire(t, next, "other")) // the first sweep may be cut short by a query, which has a second
		return fields(t, c, cfg.KeyPrefix) < 20
	})
}

// manyCounters writes more counters than a node may keep.
func manyCounters(t *testing.T, c *redis.Client, prefix string) {
	t.Helper()
	for i := range 3 {
		must(t, c.Eval(t.Context(), `for i = 1, 40000 do
			redis.call('HSET', KEYS[1], 'c:jobs/' .. string.format('%d', ARGV[1] * 40000 + i), '1')
		end return 1`, []string{prefix + ":h"}, i).Err())
	}
}

// Sweeps also happen if each process makes only a few tries.
func TestLockersThatDoNotLiveLongSweepTogether(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	started(t, cfg)
	c := client(t, servers[0].Addr)
	manyCounters(t, c, cfg.KeyPrefix)
	eventually(t, time.Minute, "the counters are swept", func() bool {
		l := locker(t, cfg)
		l.SweepEvery(16)
		for range 4 {
			release(t, acquire(t, l, "r"))
		}
		return fields(t, c, cfg.KeyPrefix) < 20
	})
}
