// Command scale measures how many fences one PostgreSQL supports, and what a second one adds.
//
//   - callers: arms a second of 1 … 512 callers of one gateway's library, each with its own resources
//   - resources: the same with 10^3 … 10^6 recorded resources (-resources 10000000: 4 GB), picked at random, and their
//     size on disk
//   - names: what names that are used once and retired leave on disk, at most -live of them at a time (not a default part)
//   - databases: acquire and release over HTTP, of one gateway with one database and of two with one each, resources spread by
//     prefix; then one of the two databases is blocked, and the other's resources are measured again
//
// A failed operation fails the run, except on a blocked database.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

type plan struct {
	callers, resources []int
	at                 int
	slice              time.Duration
	names, live        int
	inOrder            bool
}

func main() {
	parts := flag.String("part", "callers,resources,databases", "what to measure")
	callers := flag.String("callers", "1,4,16,64,128,256,512", "numbers of callers")
	resources := flag.String("resources", "1000,10000,100000,1000000", "numbers of resources")
	var p plan
	flag.IntVar(&p.at, "at", 64, "callers of the parts resources and databases")
	flag.DurationVar(&p.slice, "slice", 2*time.Second, "how long each is measured")
	flag.IntVar(&p.names, "names", 10_000_000, "names of the part names")
	flag.IntVar(&p.live, "live", 100_000, "how many of them are live at a time")
	flag.BoolVar(&p.inOrder, "in-order", false, "of the part names, only the names that come in their order")
	flag.Parse()
	var err error
	if p.live < 2 || p.names < p.live {
		fmt.Fprintln(os.Stderr, "bench-scale: -live must be at least 2, and -names no less than that")
		os.Exit(2)
	}
	for list, into := range map[*string]*[]int{callers: &p.callers, resources: &p.resources} {
		if *into, err = numbers(*list); err != nil {
			fmt.Fprintln(os.Stderr, "bench-scale:", err)
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	for part := range strings.SplitSeq(*parts, ",") {
		do, ok := map[string]func(context.Context) error{"callers": p.callersPart, "resources": p.resourcesPart, "names": p.namesPart, "databases": p.databasesPart}[part]
		if err = fmt.Errorf("there is no part %q", part); ok {
			err = do(ctx)
		}
		if err != nil {
			break
		}
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

func numbers(list string) (all []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no positive number", text)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	return all, nil
}

// run is the callers' result.
type run struct {
	times []time.Duration
	spent time.Duration
}

func (r run) rate() float64 { return float64(len(r.times)) / r.spent.Seconds() }

func (r run) quantile(q float64) time.Duration {
	if len(r.times) == 0 {
		return 0
	}
	return r.times[min(int(q*float64(len(r.times))), len(r.times)-1)].Round(time.Microsecond)
}

// spin lets callers do op for a while. The first error ends it.
func spin(ctx context.Context, callers int, slice time.Duration, op func(ctx context.Context, caller int) error) (run, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([][]time.Duration, callers)
	var all sync.WaitGroup
	begun := time.Now()
	for caller := range callers {
		all.Go(func() {
			for start := time.Now(); ctx.Err() == nil && start.Sub(begun) < slice; start = time.Now() {
				if err := op(ctx, caller); err != nil {
					cancel(err)
					return
				}
				times[caller] = append(times[caller], time.Since(start))
			}
		})
	}
	all.Wait()
	done := slices.Concat(times...)
	slices.Sort(done)
	return run{done, time.Since(begun)}, context.Cause(ctx)
}

// armer arms resources of a database with rising tokens.
type armer struct {
	db    *database
	pool  *pgxpool.Pool
	fence *pgfence.Fence
	mu    []sync.Mutex // one per resource: its lease belongs to one caller at a time
	last  []fence.Token
}

func newArmer(ctx context.Context, db *database, resources int) (*armer, error) {
	pool, err := pgxpool.New(ctx, db.gateway)
	if err != nil {
		return nil, err
	}
	a := &armer{db: db, pool: pool, fence: pgfence.New(pool), mu: make([]sync.Mutex, resources), last: make([]fence.Token, resources)}
	return a, db.record(ctx, resources)
}

func (a *armer) arm(ctx context.Context, n int) error {
	a.mu[n].Lock()
	defer a.mu[n].Unlock()
	a.last[n]++
	return a.fence.Arm(ctx, fence.Arming{Resource: resource(n), Token: 1 + a.last[n], SealHash: fence.NewSeal().Hash(), Holder: "bench"})
}

// measured spins and prints the result, with the write-ahead log that it wrote.
func (a *armer) measured(ctx context.Context, what string, callers int, slice time.Duration, op func(ctx context.Context, caller int) error) error {
	if _, err := spin(ctx, callers, slice/4, op); err != nil { // warm up
		return err
	}
	before, err := a.db.written(ctx)
	if err != nil {
		return err
	}
	r, err := spin(ctx, callers, slice, op)
	if err != nil {
		return err
	}
	after, err := a.db.written(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%-10s %10s %10.0f %10v %10v %12.0f\n", "arm", what, r.rate(), r.quantile(0.5), r.quantile(0.99), float64(after-before)/float64(max(1, len(r.times))))
	return nil
}

func (p plan) callersPart(ctx context.Context) (err error) {
	db, err := startDatabase(ctx)
	defer func() { err = errors.Join(err, db.close()) }()
	if err != nil {
		return err
	}
	const each = 16
	a, err := newArmer(ctx, db, each*slices.Max(p.callers))
	if err != nil {
		return err
	}
	defer a.pool.Close()
	fmt.Printf("%-10s %10s %10s %10s %10s %12s\n", "", "callers", "per s", "p50", "p99", "WAL bytes")
	for _, n := range p.callers {
		err := a.measured(ctx, strconv.Itoa(n), n, p.slice, func(ctx context.Context, caller int) error { return a.arm(ctx, each*caller+rand.IntN(each)) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (p plan) resourcesPart(ctx context.Context) (err error) {
	db, err := startDatabase(ctx)
	defer func() { err = errors.Join(err, db.close()) }()
	if err != nil {
		return err
	}
	fmt.Printf("%-10s %10s %10s %10s %10s %12s\n", "", "resources", "per s", "p50", "p99", "WAL bytes")
	for _, n := range p.resources {
		a, err := newArmer(ctx, db, n)
		if err != nil {
			return err
		}
		err = a.measured(ctx, strconv.Itoa(n), p.at, p.slice, func(ctx context.Context, _ int) error { return a.arm(ctx, rand.IntN(n)) })
		a.pool.Close()
		if err != nil {
			return err
		}
		size, err := db.size(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%-10s %10d %10.0f bytes for each, indexes included\n", "size", n, float64(size)/float64(n))
		if err := db.clear(ctx); err != nil {
			return err
		}
	}
	return nil
}
