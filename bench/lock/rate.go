package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// cell is one combination of nodes and callers.
type cell struct{ nodes, callers int }

// result is the result of one contender in one cell.
type result struct {
	ops    int
	spent  time.Duration
	times  []time.Duration
	allocs uint64
	failed map[string]int // number of failures, by the error's text
}

func (r *result) rate() float64 { return float64(r.ops) / r.spent.Seconds() }

func (r *result) quantile(q float64) time.Duration { return quantile(r.times, q) }

func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(int(q*float64(len(times))), len(times)-1)]
}

// rates lets callers acquire and release, each its own resource.
func rates(ctx context.Context, s settings, servers []*redisserver.Server, b *board) error {
	results := make(map[cell]map[string]*result)
	fmt.Printf("%-5s %-8s %-22s %10s %10s %10s %8s\n", "nodes", "callers", "contender", "cycles/s", "p50", "p99", "allocs")
	for _, n := range []int{1, 3, 5} {
		if s.nodes != 0 && s.nodes != n {
			continue
		}
		contenders, done, err := contend(ctx, servers[:n])
		if err != nil {
			return err
		}
		contenders = slices.DeleteFunc(contenders, func(c contender) bool { return !listed(s.contenders, c.name) })
		for _, callers := range []int{1, 16, 128} {
			if s.callers != 0 && s.callers != callers {
				continue
			}
			c := cell{n, callers}
			results[c] = measure(ctx, contenders, callers, s.slice, s.rounds)
			for _, one := range contenders {
				results[c][one.name].print(c, one.name)
				for why, times := range results[c][one.name].failed {
					b.fails(one.name, fmt.Sprintf("%d nodes, %d callers: %s", n, callers, why), times)
				}
			}
		}
		done()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	rateGoals(results, b)
	return nil
}

func (r *result) print(c cell, name string) {
	fmt.Printf("%-5d %-8d %-22s %10.0f %10v %10v %8d", c.nodes, c.callers, name, r.rate(),
		r.quantile(0.5).Round(time.Microsecond), r.quantile(0.99).Round(time.Microsecond), r.allocs/uint64(max(r.ops, 1)))
	for why, n := range r.failed {
		fmt.Printf("  %d failed: %s", n, why)
	}
	fmt.Println()
}

// measure gives each contender its slice in turn.
func measure(ctx context.Context, contenders []contender, callers int, slice time.Duration, rounds int) map[string]*result {
	results := make(map[string]*result, len(contenders))
	for _, one := range contenders {
		results[one.name] = &result{failed: make(map[string]int)}
		one.spin(ctx, callers, slice/4, &result{failed: make(map[string]int)}) // warm up
	}
	for range rounds {
		for _, one := range contenders {
			one.spin(ctx, callers, slice, results[one.name])
		}
	}
	return results
}

// hung is when a cycle is abandoned: rueidislock sometimes waits for ever at 128 callers.
const hung = 2 * time.Second

// spin lets callers acquire and release, each its own resource.
func (c contender) spin(ctx context.Context, callers int, slice time.Duration, into *result) {
	ctx, cancel := context.WithTimeout(ctx, slice+hung)
	defer cancel()
	var mu sync.Mutex
	var done sync.WaitGroup
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := time.Now()
	for i := range callers {
		done.Go(func() {
			name := fmt.Sprintf("bench/%s/%d", c.name, i)
			times := make([]time.Duration, 0, 1024)
			failed := make(map[string]int)
			for ctx.Err() == nil {
				start := time.Now()
				if start.Sub(begun) > slice {
					break
				}
				if err := c.cycle(ctx, name); err != nil {
					failed[err.Error()]++
					continue
				}
				times = append(times, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			into.times = append(into.times, times...)
			into.ops += len(times)
			for why, n := range failed {
				into.failed[why] += n
			}
		})
	}
	done.Wait()
	into.spent += min(time.Since(begun), slice+slice/4) // hung cycles count as failures, not as time
	runtime.ReadMemStats(&after)
	into.allocs += after.Mallocs - before.Mallocs
}

func rateGoals(results map[cell]map[string]*result, b *board) {
	rate := func(c cell, want float64, peers ...string) {
		ours := results[c]["fencegate"]
		best := ""
		for _, peer := range peers {
			if r := results[c][peer]; r != nil && (best == "" || r.rate() > results[c][best].rate()) {
				best = peer
			}
		}
		if ours != nil && best != "" {
			theirs := results[c][best]
			b.goal(fmt.Sprintf("lock.rate.n%d.c%d", c.nodes, c.callers), fmt.Sprintf("%.0f/s", ours.rate()),
				fmt.Sprintf("%s:%.0f/s", best, theirs.rate()), ours.rate()/theirs.rate(), want, false)
		}
	}
	p50 := func(label string, c cell, us, peer string, want float64) {
		ours, theirs := results[c][us], results[c][peer]
		if ours != nil && theirs != nil {
			a, z := ours.quantile(0.5), theirs.quantile(0.5)
			b.goal(label, a.Round(time.Microsecond).String(), peer+":"+z.Round(time.Microsecond).String(), float64(a)/float64(z), want, true)
		}
	}
	rate(cell{5, 128}, 12, "redsync")
	rate(cell{5, 16}, 4, "redsync")
	p50("lock.cycle.p50.n5.c1", cell{5, 1}, "fencegate", "redsync", 0.7)
	p50("lock.cycle.p50.n5.c1.async", cell{5, 1}, "fencegate-async", "redsync", 0.5)
	rate(cell{1, 128}, 2.5, "redislock", "rueidislock")
	rate(cell{1, 16}, 1, "redislock", "rueidislock")
	p50("lock.cycle.p50.n1.c1", cell{1, 1}, "fencegate", "redislock", 1/0.9)
}
