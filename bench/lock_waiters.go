package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	goredis9 "github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/lock"
)

// The wait for places in the queues, and how often a lease is released.
const (
	waitersSettle = 3 * time.Second
	waitersEvery  = 2 * time.Millisecond
)

// lockWaiters has many callers of one process wait, each for a resource of its own that another process holds, and
// measures from each release to the waiter's lease. It does so again while a node is frozen.
func lockWaiters(ctx context.Context, b *bench, s *stack.Stack) {
	if !b.Chosen("fencegate") {
		return
	}
	nodes := run.Must(s.Redis(ctx, 3))
	b.Printf("%-8s %-16s %10s %10s %10s %10s %10s %12s   callers of one process, each with a resource of its own\n",
		"waiters", "3 nodes", "in queues", "p50", "p99", "max", "never", "calls/s node")
	for _, n := range []int{2000, 10_000} {
		for _, frozen := range []bool{false, true} {
			w := &waiting{n: n, frozen: frozen, nodes: nodes, prefix: fmt.Sprintf("waiters-%d-%t", n, frozen)}
			withStack(b, func(s *stack.Stack) { w.measure(ctx, b, s) })
		}
	}
}

// waiting is one measurement of lockWaiters.
type waiting struct {
	n      int
	frozen bool
	nodes  stack.Redis
	prefix string
	leases []*lock.Lease
	freed  []atomic.Int64 // when each lease was released, ns since begun

	begun time.Time
	mu    sync.Mutex
	times []time.Duration
}

func (w *waiting) measure(ctx context.Context, b *bench, s *stack.Stack) {
	cfg := lock.Config{KeyPrefix: lock.Prefix(w.prefix), MaxTTL: time.Hour}
	holder, waiter := opened(ctx, s, w.nodes, cfg), opened(ctx, s, w.nodes, cfg)
	w.leases, w.freed, w.begun = make([]*lock.Lease, w.n), make([]atomic.Int64, w.n), time.Now()
	w.hold(ctx, holder)
	bounded, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range w.n {
		all.Go(func() { w.wait(bounded, waiter, i) })
	}
	what := "all answer"
	if w.frozen {
		what = "one frozen"
		time.Sleep(waitersSettle)
		run.Check(w.nodes[1].Freeze())
		s.AtClose(w.nodes[1].Thaw)
	}
	_, before := w.counters(ctx)
	time.Sleep(waitersSettle)
	places, calls := w.counters(ctx)
	calls = (calls - before) / int(waitersSettle/time.Second)
	tick := time.NewTicker(waitersEvery)
	defer tick.Stop()
	for i, lease := range w.leases {
		<-tick.C
		w.freed[i].Store(int64(time.Since(w.begun)))
		go func() { _ = lease.Release(ctx) }() // while a node is frozen, after the node timeout
	}
	grace := time.AfterFunc(15*time.Second, cancel)
	defer grace.Stop()
	all.Wait()
	never := w.n - len(w.times)
	p50, longest := run.Quantile(w.times, 0.5), run.Quantile(w.times, 1)
	b.Printf("%-8d %-16s %10d %10v %10v %10v %10d %12d\n", w.n, what, places, p50, run.Quantile(w.times, 0.99), longest, never, calls)
	if never > 0 {
		run.Check(fmt.Errorf("%d of %d waiters never got their resource, %s", never, w.n, what))
	}
	if w.n == 2000 && !w.frozen {
		b.Within("lock.waiters.p50", p50, 3*time.Millisecond)
		b.Within("lock.waiters.max", longest, 250*time.Millisecond)
	}
}

func (w *waiting) resource(i int) string { return "job/" + strconv.Itoa(i) }

// hold takes all leases.
func (w *waiting) hold(ctx context.Context, l *lock.Locker) {
	var all sync.WaitGroup
	const takers = 64
	failures := make([]error, takers)
	for k := range takers {
		all.Go(func() {
			for i := k; i < w.n && failures[k] == nil; i += takers {
				w.leases[i], failures[k] = l.Acquire(ctx, w.resource(i), lock.WithTTL(time.Hour))
			}
		})
	}
	all.Wait()
	run.Check(errors.Join(failures...))
}

// wait acquires a resource and notes how long after its release that was.
func (w *waiting) wait(ctx context.Context, l *lock.Locker, i int) {
	lease, err := l.Acquire(ctx, w.resource(i), lock.WithTTL(time.Hour))
	if err != nil {
		return
	}
	took := time.Since(w.begun) - time.Duration(w.freed[i].Load())
	lease.ReleaseAsync()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times = append(w.times, took)
}

var waitersCalls = regexp.MustCompile(`cmdstat_(?:evalsha|exists):calls=(\d+)`)

// counters are how many waiters stand in the queues of the nodes that are not frozen, and how many calls of the waiters'
// scripts and commands the busiest of them has had.
func (w *waiting) counters(ctx context.Context) (places, calls int) {
	for i, node := range w.nodes {
		if w.frozen && i == 1 {
			continue
		}
		c := goredis9.NewClient(&goredis9.Options{Addr: node.Addr})
		for keys := c.Scan(ctx, 0, w.prefix+":wait:*", 1000).Iterator(); keys.Next(ctx); {
			places++
		}
		mine := 0
		for _, found := range waitersCalls.FindAllStringSubmatch(c.Info(ctx, "commandstats").Val(), -1) {
			mine += run.Must(strconv.Atoi(found[1]))
		}
		calls = max(calls, mine)
		_ = c.Close()
	}
	return places, calls
}
