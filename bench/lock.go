package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// lockSubject compares leases with redsync, redislock and rueidislock, in one process on the same Redis nodes. The part
// sources compares the lease sources with each other, with etcd's mutex and with PostgreSQL's locks.
//
// One of our leases that is refused, or can't be released, fails the benchmark. So does any failure over the sources,
// while all servers answer.
func lockSubject() subject {
	return subject{
		name: "lock", workers: []int{1, 16, 128}, slice: 400 * time.Millisecond, rounds: 3,
		contenders: []string{
			"fencegate", "fencegate-async", "fencegate-apart", "redsync", "redsync-failfast", "redislock", "rueidislock",
			"fencegate-redis", "fencegate-postgres", "fencegate-etcd", "fencegate-etcd-arm", "fencegate-zookeeper",
			"arm+end", "etcd-mutex-arm", "pg-advisory", "pg-for-update-nowait",
		},
		parts: []part{
			{name: "rate", run: onGroups(lockRates, 1, 3, 5)},
			{name: "crowd", run: onGroups(lockCrowds, 1, 5)},
			{name: "handoff", run: onGroups(lockHandOffs, 1, 5)},
			{name: "waiters", run: lockWaiters},
			{name: "frozen", run: onGroups(lockFrozen, 5)},
			{name: "sources", run: lockSources},
		},
	}
}

// onGroups measures on unused groups of these sizes.
func onGroups(f func(context.Context, *bench, *stack.Stack, stack.Redis), sizes ...int) func(context.Context, *bench, *stack.Stack) {
	return func(ctx context.Context, b *bench, _ *stack.Stack) {
		for _, n := range sizes {
			withStack(b, func(s *stack.Stack) { f(ctx, b, s, run.Must(s.Redis(ctx, n))) })
		}
	}
}

const ttl = 30 * time.Second

type (
	release func(context.Context) error
	acquire func(ctx context.Context, resource string) (release, error)
)

// locker takes leases with one of the libraries.
type locker struct {
	name  string
	try   acquire // without contention
	wait  acquire // while another may hold the resource; nil: it is not measured
	fails bool    // it is known to fail
}

// cycle acquires and releases a resource without contention.
func (l locker) cycle(ctx context.Context, resource string) error {
	release, err := l.try(ctx, resource)
	if err != nil {
		return err
	}
	return release(ctx)
}

// contenders let each worker acquire and release a resource of its own.
func contenders(all []locker, workers int) (contenders []run.Contender) {
	allocs := run.Meter{Name: "allocs", Read: func(context.Context) float64 { return float64(mallocs()) }}
	for _, l := range all {
		resources := make([]string, workers)
		for i := range resources {
			resources[i] = fmt.Sprintf("bench/%s/%d", l.name, i)
		}
		contenders = append(contenders, run.Contender{Name: l.name, MayFail: l.fails, Meters: []run.Meter{allocs}, Op: func(ctx context.Context, worker int, _ int64) error {
			return l.cycle(ctx, resources[worker])
		}})
	}
	return contenders
}

// lockers opens a client of each library.
func lockers(ctx context.Context, s *stack.Stack, nodes stack.Redis) []locker {
	l := opened(ctx, s, nodes, lock.Config{})
	all := []locker{fencegate("fencegate", l), {name: "fencegate-async", try: func(ctx context.Context, resource string) (release, error) {
		lease, err := l.TryAcquire(ctx, resource, lock.WithTTL(ttl))
		return func(context.Context) error { lease.ReleaseAsync(); return nil }, err
	}}}
	clients, pools := make([]*goredis9.Client, len(nodes)), make([]redis.Pool, len(nodes))
	for i, node := range nodes {
		clients[i] = goredis9.NewClient(&goredis9.Options{Addr: node.Addr, PoolSize: 128})
		s.AtClose(clients[i].Close)
		pools[i] = goredis.NewPool(clients[i])
	}
	rs := redsync.New(pools...)
	all = append(all, redsyncs("redsync", rs), redsyncs("redsync-failfast", rs, redsync.WithFailFast(true)))
	if len(nodes) > 1 {
		return all
	}
	r := run.Must(rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: nodes.Addrs()}, KeyMajority: 1, KeyValidity: ttl, NoLoopTracking: true,
	}))
	s.AtClose(func() error { r.Close(); return nil })
	return append(all, redislocks(redislock.New(clients[0])), rueidislocks(r))
}

// opened opens a Locker over new nodes.
func opened(ctx context.Context, s *stack.Stack, nodes stack.Redis, cfg lock.Config) *lock.Locker {
	cfg.Nodes = nodes.Nodes()
	l := run.Must(lock.New(cfg))
	s.AtClose(l.Close)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	run.Check(admin.Of(l).Init(ctx))
	return l
}

func fencegate(name string, l *lock.Locker) locker {
	by := func(f func(context.Context, string, ...lock.AcquireOption) (*lock.Lease, error)) acquire {
		return func(ctx context.Context, resource string) (release, error) {
			lease, err := f(ctx, resource, lock.WithTTL(ttl))
			if err != nil {
				return nil, err
			}
			return lease.Release, nil
		}
	}
	return locker{name: name, try: by(l.TryAcquire), wait: by(l.Acquire)}
}

func redsyncs(name string, rs *redsync.Redsync, opts ...redsync.Option) locker {
	with := func(tries int) acquire {
		return func(ctx context.Context, resource string) (release, error) {
			m := rs.NewMutex(resource, append(slices.Clip(opts), redsync.WithExpiry(ttl), redsync.WithTries(tries))...)
			return func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }, m.LockContext(ctx)
		}
	}
	return locker{name: name, try: with(1), wait: with(1 << 20)}
}

func redislocks(c *redislock.Client) locker {
	with := func(o *redislock.Options) acquire {
		return func(ctx context.Context, resource string) (release, error) {
			one, err := c.Obtain(ctx, resource, ttl, o)
			if err != nil {
				return nil, err
			}
			return one.Release, nil
		}
	}
	return locker{name: "redislock", try: with(nil), wait: with(&redislock.Options{RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond)})}
}

func rueidislocks(l rueidislock.Locker) locker {
	f := func(ctx context.Context, resource string) (release, error) {
		_, cancel, err := l.WithContext(ctx, resource)
		return func(context.Context) error { cancel(); return nil }, err
	}
	return locker{name: "rueidislock", fails: true, try: f, wait: f}
}

// hung is when a cycle is abandoned: rueidislock sometimes waits forever at 128 callers.
const hung = 2 * time.Second

// lockRates lets callers acquire and release, each its own resource. The goals are against the fastest peer.
func lockRates(ctx context.Context, b *bench, s *stack.Stack, nodes stack.Redis) {
	all := lockers(ctx, s, nodes)
	for _, callers := range b.Workers {
		at := fmt.Sprintf("n%d.c%d", len(nodes), callers)
		results := b.Measure(ctx, run.Cell{Name: "rate." + at, Workers: callers, Grace: hung}, contenders(all, callers)...)
		rate := func(want float64, peers ...string) {
			peers = slices.DeleteFunc(peers, func(p string) bool { return results[p] == nil })
			slices.SortFunc(peers, func(p, q string) int { return cmp.Compare(results[q].Rate(), results[p].Rate()) })
			b.AtLeast("lock.rate."+at, results, "fencegate", append(peers, "")[0], want)
		}
		p50 := func(suffix, us, peer string, want float64) {
			if a, z := results[us], results[peer]; a != nil && z != nil {
				b.Quicker("lock.cycle.p50."+at+suffix, a.Quantile(0.5), peer, z.Quantile(0.5), want)
			}
		}
		switch at {
		case "n5.c128":
			rate(12, "redsync")
		case "n5.c16":
			rate(4, "redsync")
		case "n5.c1":
			p50("", "fencegate", "redsync", 0.7)
			p50(".async", "fencegate-async", "redsync", 0.5)
		case "n1.c128":
			rate(2.5, "redislock", "rueidislock")
		case "n1.c16":
			rate(1, "redislock", "rueidislock")
		case "n1.c1":
			p50("", "fencegate", "redislock", 1/0.9)
		}
	}
}

// The number of callers that want one resource, and how long each holds it.
const (
	crowdSize = 100
	crowdHold = 5 * time.Millisecond
	crowdTime = 4 * time.Second
)

// lockCrowds measures how fast one resource changes hands, and the longest wait.
func lockCrowds(ctx context.Context, b *bench, s *stack.Stack, nodes stack.Redis) {
	b.Printf("%d want one resource, %v each: at most %v/s\n", crowdSize, crowdHold, int(time.Second/crowdHold))
	b.Printf("%-5s %-22s %10s %10s %10s %14s\n", "nodes", "contender", "grants/s", "p50 wait", "max wait", "never got it")
	all := lockers(ctx, s, nodes)
	var each []acquire // a Locker for each caller, as in separate processes
	for range crowdSize {
		one := fencegate("", opened(ctx, s, nodes, lock.Config{}))
		run.Check(one.cycle(ctx, "warm")) // connects
		each = append(each, one.wait)
	}
	var next atomic.Int64
	apart := locker{name: "fencegate-apart", wait: func(ctx context.Context, resource string) (release, error) {
		return each[next.Add(1)%crowdSize](ctx, resource)
	}}
	for _, l := range slices.Insert(all, 1, apart) {
		if l.wait != nil && b.Chosen(l.name) {
			l.crowd(ctx, b, len(nodes))
		}
	}
}

func (l locker) crowd(ctx context.Context, b *bench, nodes int) {
	ctx, cancel := context.WithTimeout(ctx, crowdTime)
	defer cancel()
	var mu sync.Mutex
	var waits []time.Duration
	var longest time.Duration
	var failures []error
	never := 0
	var all sync.WaitGroup
	for range crowdSize {
		all.Go(func() {
			for got := 0; ctx.Err() == nil; {
				begun := time.Now()
				release, err := l.wait(ctx, "crowd/"+l.name)
				waited, over := time.Since(begun), ctx.Err() != nil
				if err == nil {
					got++
					time.Sleep(crowdHold)
					err, over = release(context.WithoutCancel(ctx)), false
				}
				mu.Lock()
				longest = max(longest, waited) // a wait that fails counts too
				switch {
				case err == nil:
					waits = append(waits, waited)
				case !over:
					failures = append(failures, err)
				case got == 0:
					never++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	b.Printf("%-5d %-22s %10.0f %10v %10v %14d", nodes, l.name, float64(len(waits))/crowdTime.Seconds(), run.Quantile(waits, 0.5), longest.Round(time.Millisecond), never)
	if len(failures) > 0 {
		b.Printf("  %d failed: %v", len(failures), failures[0])
		if !l.fails {
			run.Check(fmt.Errorf("%s, a crowd on %d nodes: %w", l.name, nodes, failures[0]))
		}
	}
	b.Printf("\n")
}

// lockHandOffs measures from one process's release to a waiter's lease.
func lockHandOffs(ctx context.Context, b *bench, s *stack.Stack, nodes stack.Redis) {
	at := fmt.Sprintf("n%d", len(nodes))
	p50 := handOffs(ctx, b, at, lockers(ctx, s, nodes), lockers(ctx, s, nodes))
	if ours := p50["fencegate"]; ours > 0 {
		b.Within("lock.handoff.p50."+at, ours, 800*time.Microsecond)
	}
}

// handOffs returns the medians. The waiters have their own clients, like other processes.
func handOffs(ctx context.Context, b *bench, what string, holders, waiters []locker) map[string]time.Duration {
	b.Printf("%-8s %-22s %10s %10s   from a release to the next one's lease\n", "", "contender", "p50", "p99")
	medians := map[string]time.Duration{}
	for i, l := range holders {
		if l.wait == nil || !b.Chosen(l.name) {
			continue
		}
		times, err := handOff(ctx, "hand-off/"+l.name, l.wait, waiters[i].wait)
		switch {
		case err == nil:
			medians[l.name] = run.Quantile(times, 0.5)
			b.Printf("%-8s %-22s %10v %10v\n", what, l.name, medians[l.name], run.Quantile(times, 0.99))
		case l.fails: // rueidislock sometimes waits forever
			b.Printf("%-8s %-22s failed: %v\n", what, l.name, err)
		default:
			run.Check(fmt.Errorf("%s, a hand-off: %w", l.name, err))
		}
	}
	return medians
}

func handOff(ctx context.Context, resource string, hold, wait acquire) (times []time.Duration, err error) {
	defer run.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for len(times) < 60 && (len(times) < 10 || ctx.Err() == nil) {
		release := run.Must(hold(ctx, resource))
		var at time.Time
		next := make(chan error, 1)
		go func() {
			release, err := wait(ctx, resource)
			if at = time.Now(); err == nil {
				err = release(ctx)
			}
			next <- err
		}()
		time.Sleep(20 * time.Millisecond) // enough for the waiter to be waiting
		begun := time.Now()
		run.Check(release(ctx))
		run.Check(<-next)
		times = append(times, at.Sub(begun))
	}
	return times, nil
}

// lockFrozen freezes one node of five and measures the longest cycle.
func lockFrozen(ctx context.Context, b *bench, s *stack.Stack, nodes stack.Redis) {
	var contenders []run.Contender
	for _, l := range lockers(ctx, s, nodes) {
		if l.wait == nil {
			continue
		}
		run.Check(l.cycle(ctx, "frozen")) // the connections stay open
		contenders = append(contenders, run.Contender{Name: l.name, MayFail: l.fails, Op: func(ctx context.Context, _ int, n int64) error {
			return l.cycle(ctx, fmt.Sprintf("frozen/%d", n%7))
		}})
	}
	run.Check(nodes[2].Freeze())
	s.AtClose(nodes[2].Thaw)
	results := b.Measure(ctx, run.Cell{Name: "frozen.n5", Workers: 1, Ops: 300, Slice: 8 * time.Second, Rounds: 1, Cold: true}, contenders...)
	if r := results["fencegate"]; r != nil {
		b.Within("lock.frozen.max.n5", r.Quantile(1), 60*time.Millisecond)
	}
}
