package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// cell is one combination of the parameters.
type cell struct {
	part, commit string
	clients      int
}

// contender does one operation on one client's connections.
type contender struct {
	name string
	op   func(ctx context.Context, c *client) error
	peer string // the contender for the comparison; default: the first
}

// result is the result of one contender in one cell.
type result struct {
	ops   int
	spent time.Duration
	times []time.Duration
	rates []float64 // per round
}

func (r *result) rate() float64 { return float64(r.ops) / r.spent.Seconds() }

func (r *result) quantile(q float64) time.Duration {
	slices.Sort(r.times)
	return r.times[min(int(q*float64(len(r.times))), len(r.times)-1)]
}

// ratios are r's rates over other's, round by round, in ascending
// order: adjacent slices saw the machine in the same state.
func (r *result) ratios(other *result) []float64 {
	var all []float64
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

// measure gives each contender its slice in turn and prints the results. Every round begins with another contender.
// With fixed > 0, each client does that many operations instead of a slice of time.
func (p plan) measure(ctx context.Context, clients []*client, in cell, contenders []contender, fixed int, between func(contender) error) (map[string]*result, error) {
	if len(p.only) > 0 {
		contenders = slices.DeleteFunc(contenders, func(c contender) bool {
			return c.name != contenders[0].name && !slices.Contains(p.only, c.name)
		})
	}
	results := make(map[string]*result, len(contenders))
	for _, one := range contenders {
		results[one.name] = &result{}
		if err := one.spin(ctx, clients, p.slice/4, 1, &result{}); err != nil { // warm up
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	for round := range p.rounds {
		for i := range contenders {
			one := contenders[(i+round)%len(contenders)]
			if between != nil {
				if err := between(one); err != nil {
					return nil, err
				}
			}
			if err := one.spin(ctx, clients, p.slice, fixed, results[one.name]); err != nil {
				return nil, fmt.Errorf("%s: %w", one.name, err)
			}
		}
	}
	for i := range contenders {
		one := &contenders[i]
		if one.peer == "" || results[one.peer] == nil {
			one.peer = contenders[0].name
		}
		r := results[one.name]
		of := r.ratios(results[one.peer])
		fmt.Printf("%-7s %-5s %-7d %-12s %10.0f %10v %10v   %.2f (%.2f-%.2f)", in.part, in.commit, in.clients, one.name, r.rate(),
			r.quantile(0.5).Round(time.Microsecond), r.quantile(0.99).Round(time.Microsecond), median(of), of[0], of[len(of)-1])
		if one.peer != contenders[0].name {
			fmt.Print(" of ", one.peer)
		}
		fmt.Println()
	}
	return results, nil
}

// spin lets all clients work for a while, or until each has done fixed operations.
func (c contender) spin(ctx context.Context, clients []*client, slice time.Duration, fixed int, into *result) error {
	var mu sync.Mutex
	var done sync.WaitGroup
	var failed error
	ops := 0
	begun := time.Now()
	for _, cl := range clients {
		done.Go(func() {
			times := make([]time.Duration, 0, 1024)
			var err error
			for n := 0; err == nil && ctx.Err() == nil; n++ {
				start := time.Now()
				if fixed > 0 && n == fixed || fixed == 0 && start.Sub(begun) > slice {
					break
				}
				if err = c.op(ctx, cl); err == nil {
					times = append(times, time.Since(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			into.times = append(into.times, times...)
			ops += len(times)
			if err != nil {
				failed = err
			}
		})
	}
	done.Wait()
	spent := time.Since(begun)
	into.ops += ops
	into.spent += spent
	into.rates = append(into.rates, float64(ops)/spent.Seconds())
	if failed == nil {
		failed = ctx.Err()
	}
	return failed
}

// goal is one goal's line.
type goal struct {
	name       string
	ours, peer string
	ratio      float64
	want       float64
}

func (g goal) met() bool { return g.ratio >= g.want }

func (g goal) String() string {
	answer := map[bool]string{true: "yes", false: "no"}[g.met()]
	return fmt.Sprintf("goal %s ours=%s peer=%s ratio=%.2f want=>=%.2f met=%s", g.name, g.ours, g.peer, g.ratio, g.want, answer)
}

// compare returns the goal of one contender over another; nil if one was not measured.
func compare(results map[string]*result, in cell, ours, peer string, want float64) []goal {
	a, b := results[ours], results[peer]
	if a == nil || b == nil || in.clients != 16 {
		return nil
	}
	name := fmt.Sprintf("fence.%s.c%d.%s.%s", in.part, in.clients, in.commit, ours)
	return []goal{{name, fmt.Sprintf("%.0f/s", a.rate()), fmt.Sprintf("%s:%.0f/s", peer, b.rate()), median(a.ratios(b)), want}}
}
