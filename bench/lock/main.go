// Command lock measures fencegate's leases against redsync, redislock and
// rueidislock: in one process, on the same real Redis nodes, interleaved.
//
// It ends with one line for each goal, and exits with 1 where a goal is missed
// and -strict is given.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// cell is one combination of nodes and callers.
type cell struct{ nodes, callers int }

// result is what one contender did in one cell.
type result struct {
	ops    int
	spent  time.Duration
	times  []time.Duration
	allocs uint64
	failed int
}

func (r *result) rate() float64 { return float64(r.ops) / r.spent.Seconds() }

func (r *result) quantile(q float64) time.Duration {
	if len(r.times) == 0 {
		return 0
	}
	slices.Sort(r.times)
	return r.times[min(int(q*float64(len(r.times))), len(r.times)-1)]
}

func main() {
	slice := flag.Duration("slice", 400*time.Millisecond, "how long one contender runs before the next one")
	rounds := flag.Int("rounds", 3, "how often each contender has its slice")
	only := flag.Int("nodes", 0, "measure groups of this size only; 0: all")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	strict := flag.Bool("strict", false, "exit with 1 when a goal is missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench-lock:", err)
			os.Exit(1)
		}
	}
	met, err := run(ctx, *only, *slice, *rounds)
	pprof.StopCPUProfile()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-lock:", err)
		os.Exit(1)
	}
	if !met && *strict {
		os.Exit(1)
	}
}

func run(ctx context.Context, only int, slice time.Duration, rounds int) (met bool, err error) {
	var servers []*redisserver.Server
	defer func() {
		for _, s := range servers {
			_ = s.Close()
		}
	}()
	for range 5 {
		s, err := redisserver.Start(ctx, redisserver.Config{})
		if err != nil {
			return false, err
		}
		servers = append(servers, s)
	}
	results := make(map[cell]map[string]*result)
	fmt.Printf("%-5s %-8s %-22s %10s %10s %10s %8s\n", "nodes", "callers", "contender", "ops/s", "p50", "p99", "allocs")
	for _, n := range []int{1, 3, 5} {
		if only != 0 && only != n {
			continue
		}
		contenders, err := contend(ctx, servers[:n])
		if err != nil {
			return false, err
		}
		for _, callers := range []int{1, 16, 128} {
			c := cell{n, callers}
			results[c] = measure(ctx, contenders, callers, slice, rounds)
			for _, one := range contenders {
				r := results[c][one.name]
				fmt.Printf("%-5d %-8d %-22s %10.0f %10v %10v %8d", n, callers, one.name, r.rate(),
					r.quantile(0.5).Round(time.Microsecond), r.quantile(0.99).Round(time.Microsecond), r.allocs/uint64(max(r.ops, 1)))
				if r.failed > 0 {
					fmt.Printf("  %d failed", r.failed)
				}
				fmt.Println()
			}
		}
		for _, one := range contenders {
			one.close()
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	met = throughputGoals(results)
	if only != 0 {
		return met, nil
	}
	handed, err := handOffGoal(ctx, servers)
	if err != nil {
		return false, err
	}
	frozen, err := frozenGoal(ctx, servers)
	return met && handed && frozen, err
}

// measure gives each contender its slice in turn.
func measure(ctx context.Context, contenders []contender, callers int, slice time.Duration, rounds int) map[string]*result {
	results := make(map[string]*result, len(contenders))
	for _, one := range contenders {
		results[one.name] = &result{}
		one.spin(ctx, callers, slice/4, &result{}) // warm up
	}
	for range rounds {
		for _, one := range contenders {
			one.spin(ctx, callers, slice, results[one.name])
		}
	}
	return results
}

// hung is when a cycle is given up: rueidislock now and then waits for ever at 128 callers.
const hung = 2 * time.Second

// spin lets callers acquire and release, each a resource of its own.
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
			failed := 0
			for ctx.Err() == nil {
				start := time.Now()
				if start.Sub(begun) > slice {
					break
				}
				if err := c.cycle(ctx, name); err != nil {
					failed++
					continue
				}
				times = append(times, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			into.times = append(into.times, times...)
			into.ops += len(times)
			into.failed += failed
		})
	}
	done.Wait()
	into.spent += min(time.Since(begun), slice+slice/4) // what hangs is counted as failed, not as time
	runtime.ReadMemStats(&after)
	into.allocs += after.Mallocs - before.Mallocs
}

// goal prints one goal's line. Lower is better where atMost.
func goal(name, ours, peer string, ratio float64, want float64, atMost bool) bool {
	met, sign := ratio >= want, ">="
	if atMost {
		met, sign = ratio <= want, "<="
	}
	answer := map[bool]string{true: "yes", false: "no"}[met]
	fmt.Printf("goal %s ours=%s peer=%s ratio=%.2f want=%s%.2f met=%s\n", name, ours, peer, ratio, sign, want, answer)
	return met
}

func throughputGoals(results map[cell]map[string]*result) bool {
	met := true
	rate := func(c cell, peer string, want float64) {
		ours, theirs := results[c]["fencegate"], results[c][peer]
		if ours == nil {
			return // not measured
		}
		met = goal(fmt.Sprintf("lock.rate.n%d.c%d", c.nodes, c.callers),
			fmt.Sprintf("%.0f/s", ours.rate()), fmt.Sprintf("%s:%.0f/s", peer, theirs.rate()),
			ours.rate()/theirs.rate(), want, false) && met
	}
	p50 := func(label, us, peer string, want float64) {
		c := cell{5, 1}
		if results[c] == nil {
			return
		}
		ours, theirs := results[c][us].quantile(0.5), results[c][peer].quantile(0.5)
		met = goal(label, ours.Round(time.Microsecond).String(), peer+":"+theirs.Round(time.Microsecond).String(),
			float64(ours)/float64(theirs), want, true) && met
	}
	rate(cell{5, 128}, "redsync", 12)
	rate(cell{5, 16}, "redsync", 4)
	p50("lock.cycle.p50.n5.c1", "fencegate", "redsync", 0.65)
	p50("lock.cycle.p50.n5.c1.failfast", "fencegate", "redsync-failfast", 0.65)
	p50("lock.cycle.p50.n5.c1.async", "fencegate-async", "redsync", 0.5)
	for callers, want := range map[int]float64{128: 2.5, 16: 1, 1: 0.95} {
		if results[cell{1, callers}] == nil {
			continue
		}
		best := slices.MaxFunc([]string{"redislock", "rueidislock"}, func(a, b string) int {
			c := cell{1, callers}
			return cmp.Compare(results[c][a].rate(), results[c][b].rate())
		})
		rate(cell{1, callers}, best, want)
	}
	return met
}
