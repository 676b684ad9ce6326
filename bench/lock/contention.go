package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// handOffGoal measures from one process's release to the acquisition of a
// waiter that uses a Locker of its own, as another process would.
func handOffGoal(ctx context.Context, servers []*redisserver.Server) (bool, error) {
	holder, err := ours(ctx, servers)
	if err != nil {
		return false, err
	}
	defer holder.Close()
	waiter, err := ours(ctx, servers)
	if err != nil {
		return false, err
	}
	defer waiter.Close()
	p50 := func(other *lock.Locker) (time.Duration, error) {
		var times []time.Duration
		for range 40 {
			lease, err := holder.Acquire(ctx, "hand-off", lock.WithTTL(ttl))
			if err != nil {
				return 0, err
			}
			got := make(chan time.Time, 1)
			failed := make(chan error, 1)
			go func() {
				next, err := other.Acquire(ctx, "hand-off", lock.WithTTL(ttl))
				if err != nil {
					failed <- err
					return
				}
				got <- time.Now()
				next.ReleaseAsync()
			}()
			time.Sleep(20 * time.Millisecond) // long enough to be waiting
			begun := time.Now()
			if err := lease.Release(ctx); err != nil {
				return 0, err
			}
			select {
			case at := <-got:
				times = append(times, at.Sub(begun))
			case err := <-failed:
				return 0, err
			}
		}
		slices.Sort(times)
		return times[len(times)/2], nil
	}
	met := true
	for name, other := range map[string]*lock.Locker{"within": holder, "across": waiter} {
		took, err := p50(other)
		if err != nil {
			return false, err
		}
		met = goal("lock.handoff.p50.n5."+name, took.Round(time.Microsecond).String(), "want:800µs",
			took.Seconds()/0.0008, 1, true) && met
	}
	return met, nil
}

// frozenGoal freezes one node of five and looks for the longest operation.
func frozenGoal(ctx context.Context, servers []*redisserver.Server) (bool, error) {
	l, err := ours(ctx, servers)
	if err != nil {
		return false, err
	}
	defer l.Close()
	if err := servers[2].Freeze(); err != nil {
		return false, err
	}
	defer func() { _ = servers[2].Thaw() }()
	var longest time.Duration
	var failed int
	timed := func(f func() error) {
		begun := time.Now()
		if f() != nil {
			failed++
		}
		longest = max(longest, time.Since(begun))
	}
	for i := range 300 {
		var lease *lock.Lease
		timed(func() (err error) {
			lease, err = l.TryAcquire(ctx, fmt.Sprintf("frozen/%d", i%7), lock.WithTTL(ttl))
			return err
		})
		if lease == nil {
			continue
		}
		timed(func() error { return lease.Extend(ctx, ttl) })
		timed(func() error { return lease.Release(ctx) })
	}
	met := goal("lock.frozen.max.n5", longest.Round(time.Microsecond).String(), "want:60ms", longest.Seconds()/0.06, 1, true)
	return met && failed == 0, nil
}
