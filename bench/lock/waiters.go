package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis9 "github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// The wait for places in the queues, and how often a lease is released.
const (
	waitersSettle = 3 * time.Second
	waitersEvery  = 2 * time.Millisecond
)

// waiters has many callers of one process wait, each for a resource of its own that another process holds, and
// measures from each release to the waiter's lease. It does so again while a node is frozen.
func waiters(ctx context.Context, s settings, servers []*redisserver.Server, b *board) error {
	if s.nodes != 0 && s.nodes != 3 {
		return nil
	}
	fmt.Printf("\n%-8s %-16s %10s %10s %10s %10s %10s %12s   callers of one process, each with a resource of its own\n",
		"waiters", "3 nodes", "in queues", "p50", "p99", "max", "never", "calls/s node")
	for i, n := range []int{2000, 10_000} {
		if s.callers != 0 && s.callers != n {
			continue
		}
		for _, frozen := range []bool{false, true} {
			w := &wait{n: n, frozen: frozen, servers: servers[:3], prefix: fmt.Sprintf("waiters-%d-%t", i, frozen)}
			if err := w.measure(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait is one measurement of waiters.
type wait struct {
	n       int
	frozen  bool
	servers []*redisserver.Server
	prefix  string
	leases  []*lock.Lease
	freed   []atomic.Int64 // when each lease was released, ns since begun

	begun time.Time
	mu    sync.Mutex
	times []time.Duration
}

func (w *wait) measure(ctx context.Context, b *board) error {
	cfg := lock.Config{KeyPrefix: lock.Prefix(w.prefix), MaxTTL: time.Hour}
	holder, err := started(ctx, cfg, w.servers)
	if err != nil {
		return err
	}
	defer func() { _ = holder.Close() }()
	waiter, err := started(ctx, cfg, w.servers)
	if err != nil {
		return err
	}
	defer func() { _ = waiter.Close() }()
	w.leases, w.freed, w.begun = make([]*lock.Lease, w.n), make([]atomic.Int64, w.n), time.Now()
	if err := w.hold(ctx, holder); err != nil {
		return err
	}
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
		if err := w.servers[1].Freeze(); err != nil {
			return err
		}
		defer func() { _ = w.servers[1].Thaw() }()
	}
	calls := w.calls(ctx)
	time.Sleep(waitersSettle)
	calls = (w.calls(ctx) - calls) / int64(waitersSettle/time.Second)
	places := w.places(ctx)
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
	p50, longest := quantile(w.times, 0.5), slices.Max(append(w.times, 0))
	fmt.Printf("%-8d %-16s %10d %10v %10v %10v %10d %12d\n", w.n, what, places, p50.Round(time.Microsecond),
		quantile(w.times, 0.99).Round(time.Microsecond), longest.Round(time.Microsecond), never, calls)
	b.fails("fencegate", fmt.Sprintf("%d waiters, %s", w.n, what), never)
	if w.n == 2000 && !w.frozen {
		b.goal("lock.waiters.p50", p50.Round(time.Microsecond).String(), "want:3ms", p50.Seconds()/0.003, 1, true)
		b.goal("lock.waiters.max", longest.Round(time.Microsecond).String(), "want:250ms", longest.Seconds()/0.25, 1, true)
	}
	return nil
}

func (w *wait) resource(i int) string { return "job/" + strconv.Itoa(i) }

// hold takes all leases.
func (w *wait) hold(ctx context.Context, l *lock.Locker) error {
	var all sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[error]
	for range 64 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < w.n; i = int(next.Add(1)) - 1 {
				lease, err := l.Acquire(ctx, w.resource(i), lock.WithTTL(time.Hour))
				if err != nil {
					failed.Store(&err)
					return
				}
				w.leases[i] = lease
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// wait acquires a resource and notes how long after its release that was.
func (w *wait) wait(ctx context.Context, l *lock.Locker, i int) {
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

// answering calls f with a client of each node that is not frozen.
func (w *wait) answering(f func(*goredis9.Client)) {
	for i, s := range w.servers {
		if w.frozen && i == 1 {
			continue
		}
		c := goredis9.NewClient(&goredis9.Options{Addr: s.Addr})
		f(c)
		_ = c.Close()
	}
}

// places is how many waiters stand in the queues.
func (w *wait) places(ctx context.Context) (n int) {
	w.answering(func(c *goredis9.Client) {
		keys := c.Scan(ctx, 0, w.prefix+":wait:*", 1000).Iterator()
		for keys.Next(ctx) {
			n++
		}
	})
	return n
}

// calls is how many calls of scripts and commands of the waiters the busiest node has had.
func (w *wait) calls(ctx context.Context) (most int64) {
	w.answering(func(c *goredis9.Client) {
		var n int64
		for line := range strings.Lines(c.Info(ctx, "commandstats").Val()) {
			for _, name := range []string{"cmdstat_evalsha:calls=", "cmdstat_exists:calls="} {
				if count, is := strings.CutPrefix(line, name); is {
					calls, _, _ := strings.Cut(count, ",")
					one, _ := strconv.ParseInt(calls, 10, 64)
					n += one
				}
			}
		}
		most = max(most, n)
	})
	return most
}
