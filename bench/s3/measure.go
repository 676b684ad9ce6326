package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// goal is one line of the result.
type goal struct {
	name, ours, peer string
	ratio, want      float64
	atMost           bool
}

func (g goal) met() bool {
	if g.atMost {
		return g.ratio <= g.want
	}
	return g.ratio >= g.want
}

func (g goal) String() string {
	sign, answer := ">=", "no"
	if g.atMost {
		sign = "<="
	}
	if g.met() {
		answer = "yes"
	}
	return fmt.Sprintf("goal s3.%s ours=%s peer=%s ratio=%.2f want=%s%.2f met=%s", g.name, g.ours, g.peer, g.ratio, sign, g.want, answer)
}

// operation does one operation, the n-th of this contender.
type operation func(ctx context.Context, one *contender, n int64) error

// sliceOf lets clients repeat an operation, and returns the rate per second. Each client does at least one.
func (p plan) sliceOf(ctx context.Context, w *world, one *contender, clients int, do operation) (rate float64, each spent, err error) {
	before, err := w.spentBy(one)
	if err != nil {
		return 0, each, err
	}
	var next, done atomic.Int64
	var first sync.Once
	var all sync.WaitGroup
	began := time.Now()
	for range clients {
		all.Go(func() {
			for {
				if e := do(ctx, one, next.Add(1)); e != nil {
					first.Do(func() { err = e })
					return
				}
				if done.Add(1); time.Since(began) > p.slice {
					return
				}
			}
		})
	}
	all.Wait()
	rate = float64(done.Load()) / time.Since(began).Seconds()
	after, e := w.spentBy(one)
	return rate, after.since(before, max(done.Load(), 1)), cmp.Or(err, e)
}

// measure gives each contender its slice in turn and prints the results. Every round begins with another contender.
func (p plan) measure(ctx context.Context, w *world, what string, clients int, contenders []*contender, do operation) (map[string][]float64, error) {
	rates, _, err := p.measureCosts(ctx, w, what, clients, contenders, do)
	return rates, err
}

// measureCosts is measure, which also returns our median cost per operation.
func (p plan) measureCosts(ctx context.Context, w *world, what string, clients int, contenders []*contender, do operation) (map[string][]float64, spent, error) {
	rates, costs := map[string][]float64{}, map[string][]spent{}
	for round := range p.rounds {
		for i := range contenders {
			one := contenders[(i+round)%len(contenders)]
			bounded, cancel := context.WithTimeout(ctx, p.slice+2*time.Minute)
			rate, each, err := p.sliceOf(bounded, w, one, clients, do)
			cancel()
			if err != nil {
				return nil, spent{}, fmt.Errorf("%s: %w", one.name, err)
			}
			rates[one.name], costs[one.name] = append(rates[one.name], rate), append(costs[one.name], each)
		}
	}
	for _, one := range contenders {
		all := ratios(rates["ours"], rates[one.name])
		fmt.Printf("%-22s %3d clients  %-10s %10.1f/s   ours is %.2f of it (%.2f-%.2f)   %s\n", what, clients, one.name, median(rates[one.name]), median(all), all[0], all[len(all)-1], medianCost(costs[one.name]))
	}
	return rates, medianCost(costs["ours"]), nil
}

// medianCost is the median of each part.
func medianCost(all []spent) spent {
	middle := func(part func(spent) time.Duration) time.Duration {
		var list []float64
		for _, s := range all {
			list = append(list, float64(part(s)))
		}
		if len(list) == 0 {
			return 0
		}
		return time.Duration(median(list))
	}
	return spent{
		server:   middle(func(s spent) time.Duration { return s.server }),
		postgres: middle(func(s spent) time.Duration { return s.postgres }),
		clients:  middle(func(s spent) time.Duration { return s.clients }),
	}
}

// The processor time that a put of 4 KiB may use, with several at a time.
const (
	postgresGoal = 500 * time.Microsecond
	serverGoal   = 600 * time.Microsecond
)

// costGoals returns the goals for processor time.
func costGoals(name string, s spent) []goal {
	one := func(part string, took, most time.Duration) goal {
		return goal{name: name + ".processor." + part, ours: took.String(), peer: most.String(), ratio: float64(took) / float64(most), want: 1, atMost: true}
	}
	return []goal{one("postgres", s.postgres, postgresGoal), one("server", s.server, serverGoal)}
}

// compare returns the goal of being as fast as a peer.
func compare(name string, rates map[string][]float64, peer string, want float64) []goal {
	if len(rates[peer]) == 0 || len(rates["ours"]) == 0 {
		return nil
	}
	show := func(all []float64) string { return strconv.FormatFloat(median(all), 'f', 1, 64) + "/s" }
	return []goal{{name: name + "." + peer, ours: show(rates["ours"]), peer: show(rates[peer]), ratio: median(ratios(rates["ours"], rates[peer])), want: want}}
}

// ratios are round by round, in ascending order: adjacent slices saw the machine in the same state.
func ratios(ours, peers []float64) []float64 {
	var all []float64
	for i := range min(len(ours), len(peers)) {
		all = append(all, ours[i]/peers[i])
	}
	if len(all) == 0 {
		return []float64{0}
	}
	slices.Sort(all)
	return all
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

const largeSize = 16 << 20

// each runs a part with every size and number of clients.
func (p plan) each(f func(size int64, clients int) error) error {
	for _, size := range p.sizes {
		for i, clients := range p.clients {
			if size > largeSize && i > 0 {
				break
			}
			if err := f(size, clients); err != nil {
				return err
			}
		}
	}
	return nil
}

// Keys repeat, so that the disk does not fill up: later writes overwrite older objects.
const keysOf = 256

func key(size, n int64) string {
	return "put/" + showSize(size) + "/" + strconv.FormatInt(n%keysOf, 10)
}

// multixacts is how many multixacts PostgreSQL has created so far, in all tables. Each is work for VACUUM.
func (w *world) multixacts(ctx context.Context) (n int64, err error) {
	err = w.db.Pool.QueryRow(ctx, "SELECT mxid_age('1'::xid)").Scan(&n)
	return n, err
}

func (p plan) putPart(ctx context.Context, w *world) (goals []goal, err error) {
	before, err := w.multixacts(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if after, failed := w.multixacts(ctx); err == nil && failed == nil {
			made := after - before
			goals = append(goals, goal{name: "put.multixacts", ours: strconv.FormatInt(made, 10), peer: "0", ratio: float64(made), want: 0, atMost: true})
		}
	}()
	err = p.each(func(size int64, clients int) error {
		keys := int64(keysOf)
		if size > largeSize {
			keys = 2
		}
		rates, cost, err := p.measureCosts(ctx, w, "put "+showSize(size), clients, w.contenders, func(ctx context.Context, one *contender, n int64) error {
			return one.put(ctx, key(size, n%keys), size)
		})
		if err == nil && size == 4<<10 {
			goals = append(goals, compare(fmt.Sprintf("put.%s.c%d", showSize(size), clients), rates, "minio", 1)...)
			if clients > 1 {
				goals = append(goals, costGoals(fmt.Sprintf("put.%s.c%d", showSize(size), clients), cost)...)
			}
		}
		return err
	})
	return goals, err
}

func (p plan) getPart(ctx context.Context, w *world) (goals []goal, err error) {
	err = p.each(func(size int64, clients int) error {
		keys := int64(16)
		if size > largeSize {
			keys = 1
		}
		for _, one := range w.contenders {
			for n := range keys {
				if err := one.put(ctx, "get/"+key(size, n), size); err != nil {
					return err
				}
			}
		}
		rates, err := p.measure(ctx, w, "get "+showSize(size), clients, w.contenders, func(ctx context.Context, one *contender, n int64) error {
			return one.get(ctx, "get/"+key(size, n%keys))
		})
		if err == nil {
			goals = append(goals, compare(fmt.Sprintf("get.%s.c%d", showSize(size), clients), rates, "versitygw", 1)...)
		}
		return err
	})
	return goals, err
}

// memoryPart uploads 1 GiB and measures the memory that it took.
func (p plan) memoryPart(ctx context.Context, w *world) ([]goal, error) {
	const size = 1 << 30
	grown := map[string]float64{}
	for _, one := range w.contenders {
		if err := one.put(ctx, "small", 1); err != nil {
			return nil, err
		}
		idle, _, err := memory(one.pid)
		if err != nil {
			return nil, err
		}
		if err := resetPeak(one.pid); err != nil {
			return nil, err
		}
		if err := one.put(ctx, "large", size); err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		_, peak, err := memory(one.pid)
		if err != nil {
			return nil, err
		}
		grown[one.name] = peak - idle
		fmt.Printf("%-22s   1 client   %-10s %10.1f MiB over %.1f idle\n", "memory of put 1GiB", one.name, peak-idle, idle)
	}
	if _, there := grown["ours"]; !there {
		return nil, nil
	}
	return []goal{{name: "memory.put.1GiB", ours: fmt.Sprintf("%.1fMiB", grown["ours"]), peer: "40MiB", ratio: grown["ours"] / 40, want: 1, atMost: true}}, nil
}
