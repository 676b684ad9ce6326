// Command api measures the cost of a lease over HTTP compared with the library: acquire and release without contention,
// with the fence, on real PostgreSQL and Redis nodes, interleaved in one run.
//
//   - library: package lock and package pgfence, in this process
//   - http: the gateway's HTTP API over loopback, with a client of minimal cost (raw HTTP/1.1)
//   - client: the same, with package client
//
// It fails if any operation fails, and prints one line for each goal. With -strict it exits with 1 if a goal is missed.
// The gateway runs in this process too, so all of them share its processors.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

type plan struct {
	callers []int
	nodes   int
	slice   time.Duration
	rounds  int
	only    string // a contender besides library; "": all
	profile string
}

const (
	goalCallers = 128
	goalRatio   = 0.7
)

func main() {
	var p plan
	callers := flag.String("callers", "1,16,128", fmt.Sprintf("numbers of callers; the goal is held at %d", goalCallers))
	flag.IntVar(&p.nodes, "nodes", 3, "Redis nodes")
	flag.DurationVar(&p.slice, "slice", 700*time.Millisecond, "how long one contender runs before the next one")
	flag.IntVar(&p.rounds, "rounds", 7, "how often each contender has its slice")
	flag.StringVar(&p.only, "only", "", "one contender alone")
	flag.StringVar(&p.profile, "profile", "", "write a profile of the processor's time here")
	strict := flag.Bool("strict", false, "exit with 1 when a goal is missed")
	flag.Parse()
	for c := range strings.SplitSeq(*callers, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "bench-api: -callers wants positive numbers")
			os.Exit(2)
		}
		p.callers = append(p.callers, n)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	met, err := p.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-api:", err)
		os.Exit(1)
	}
	if !met && *strict {
		os.Exit(1)
	}
}

func (p plan) run(ctx context.Context) (met bool, err error) {
	w, err := start(ctx, p.nodes, slices.Max(p.callers))
	if err != nil {
		return false, errors.Join(err, w.close())
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if p.profile != "" {
		out, err := os.Create(p.profile)
		if err != nil {
			return false, err
		}
		defer out.Close()
		if err := pprof.StartCPUProfile(out); err != nil {
			return false, err
		}
		defer pprof.StopCPUProfile()
	}
	contenders := w.contenders()
	if p.only != "" {
		contenders = slices.DeleteFunc(contenders, func(c *contender) bool { return c.name != p.only })
	}
	met = true
	fmt.Printf("%-8s %-8s %10s %10s %10s   %s\n", "callers", "contender", "leases/s", "p50", "p99", "of library (range of rounds)")
	var goals []string
	for _, n := range p.callers {
		results, err := p.measure(ctx, contenders, n)
		if err != nil {
			return false, err
		}
		library, http := results["library"], results["http"]
		if n != goalCallers || library == nil || http == nil {
			continue
		}
		ratio := median(http.ratios(library))
		answer := map[bool]string{true: "yes", false: "no"}[ratio >= goalRatio]
		met = met && ratio >= goalRatio
		goals = append(goals, fmt.Sprintf("goal api.c%d ours=%.0f/s peer=library:%.0f/s ratio=%.2f want=>=%.2f met=%s", n, median(http.sorted()), median(library.sorted()), ratio, goalRatio, answer))
	}
	fmt.Println(strings.Join(goals, "\n"))
	return met, nil
}

// result is the result of one contender with one number of callers.
type result struct {
	times []time.Duration
	rates []float64 // per round
}

func (r *result) sorted() []float64 { return slices.Sorted(slices.Values(r.rates)) }

func (r *result) quantile(q float64) time.Duration {
	slices.Sort(r.times)
	return r.times[min(int(q*float64(len(r.times))), len(r.times)-1)].Round(time.Microsecond)
}

// ratios are r's rates over other's, round by round: adjacent slices saw the machine in the same state.
func (r *result) ratios(other *result) (all []float64) {
	for i := range r.rates {
		all = append(all, r.rates[i]/other.rates[i])
	}
	slices.Sort(all)
	return all
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// measure gives each contender its slice in turn. Every round begins with another contender.
func (p plan) measure(ctx context.Context, contenders []*contender, callers int) (map[string]*result, error) {
	results := make(map[string]*result, len(contenders))
	for round := -1; round < p.rounds; round++ { // the first one warms up
		for i := range contenders {
			c := contenders[(i+round+1)%len(contenders)]
			r := results[c.name]
			if round < 0 {
				results[c.name] = &result{}
				r = &result{}
			}
			if err := p.spin(ctx, c, callers, r); err != nil {
				return nil, fmt.Errorf("%s, %d callers: %w", c.name, callers, err)
			}
		}
	}
	for _, c := range contenders {
		r := results[c.name]
		fmt.Printf("%-8d %-8s %10.0f %10v %10v", callers, c.name, median(r.sorted()), r.quantile(0.5), r.quantile(0.99))
		if library := results["library"]; library != nil {
			of := r.ratios(library)
			fmt.Printf("   %.2f (%.2f-%.2f)", median(of), of[0], of[len(of)-1])
		}
		fmt.Println()
	}
	return results, nil
}

// spin lets the callers acquire and release for a while. The first error ends it.
func (p plan) spin(ctx context.Context, c *contender, callers int, into *result) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([][]time.Duration, callers)
	var all sync.WaitGroup
	begun := time.Now()
	for caller := range callers {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				start := time.Now()
				if start.Sub(begun) > p.slice {
					return
				}
				if err := c.cycle(ctx, caller, fmt.Sprintf("bench/%s/%d/%d", c.name, caller, n%16)); err != nil {
					cancel(err)
					return
				}
				times[caller] = append(times[caller], time.Since(start))
			}
		})
	}
	all.Wait()
	spent := time.Since(begun)
	done := slices.Concat(times...)
	into.times = append(into.times, done...)
	into.rates = append(into.rates, float64(len(done))/spent.Seconds())
	return context.Cause(ctx)
}
