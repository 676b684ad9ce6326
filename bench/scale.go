package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/stack"
)

// scaleSubject measures how many fences one PostgreSQL supports, and what a second one adds.
//
//   - callers: arms a second of 1 … 512 callers of one gateway's library, each with its own resources
//   - resources: the same with 10^3 … 10^6 recorded resources (-resources 10000000: 4 GB), picked at random, and their
//     size on disk
//   - databases: acquire and release over HTTP, of one gateway with one database and of two with one each, resources
//     spread by prefix; then one of the two databases is blocked, and the other's resources are measured again
//   - names-in-order, names-scattered: what names that are used once and retired leave on disk
func scaleSubject() subject {
	return subject{
		name: "scale", workers: []int{1, 4, 16, 64, 128, 256, 512}, slice: 2 * time.Second, rounds: 1, contenders: []string{"arm", "lease"},
		parts: []part{
			{name: "callers", run: scaleCallers},
			{name: "resources", run: scaleResources},
			{name: "databases", run: databases},
			{name: "names-in-order", extra: true, run: scaleNames(1)},
			{name: "names-scattered", extra: true, run: scaleNames(scatter)},
		},
	}
}

// scaleAt is the number of callers of the other parts.
const scaleAt = 64

func startScale(ctx context.Context, s *stack.Stack, name string) database {
	return startDatabase(ctx, s, stack.PostgresConfig{Name: name, Durable: true, Settings: map[string]string{"autovacuum": "on"}})
}

// arms records this many resources with token 1, and returns what arms one of them.
func (d database) arms(ctx context.Context, s *stack.Stack, resources int) (arm func(ctx context.Context, n int) error) {
	d.exec(ctx, `INSERT INTO fence.arms SELECT 'orders/' || lpad(n::text, 9, '0') FROM generate_series(0, $1 - 1) n`, resources)
	d.exec(ctx, `INSERT INTO fence.resources (resource, token, seal, holder, armed_at)
		SELECT 'orders/' || lpad(n::text, 9, '0'), 1, sha256(n::text::bytea), 'bench', now() FROM generate_series(0, $1 - 1) n`, resources)
	d.exec(ctx, `VACUUM ANALYZE fence.arms, fence.resources`)
	d.exec(ctx, `CHECKPOINT`)
	f := pgfence.New(gatewayPool(ctx, s, d.Postgres, 4))
	leases := make([]sync.Mutex, resources) // a resource's lease belongs to one caller at a time
	last := make([]fence.Token, resources)
	return func(ctx context.Context, n int) error {
		leases[n].Lock()
		defer leases[n].Unlock()
		last[n]++
		return f.Arm(ctx, fence.Arming{Resource: fmt.Sprintf("orders/%09d", n), Token: 1 + last[n], SealHash: fence.NewSeal().Hash(), Holder: "bench"})
	}
}

func (d database) measure(ctx context.Context, b *bench, name string, callers int, arm func(ctx context.Context, caller int) error) {
	b.Measure(ctx, run.Cell{Name: name, Workers: callers}, run.Contender{
		Name: "arm", Meters: []run.Meter{d.written()}, Op: func(ctx context.Context, caller int, _ int64) error { return arm(ctx, caller) },
	})
}

func scaleCallers(ctx context.Context, b *bench, s *stack.Stack) {
	const each = 16
	d := startScale(ctx, s, "")
	arm := d.arms(ctx, s, each*slices.Max(b.Workers))
	for _, n := range b.Workers {
		d.measure(ctx, b, fmt.Sprintf("callers.%d", n), n, func(ctx context.Context, caller int) error { return arm(ctx, each*caller+rand.IntN(each)) })
	}
}

func scaleResources(ctx context.Context, b *bench, s *stack.Stack) {
	d := startScale(ctx, s, "")
	for _, n := range b.resources {
		arm, name := d.arms(ctx, s, n), fmt.Sprintf("resources.%d", n)
		d.measure(ctx, b, name, scaleAt, func(ctx context.Context, _ int) error { return arm(ctx, rand.IntN(n)) })
		var size float64
		d.ask(ctx, `SELECT (pg_total_relation_size('fence.arms') + pg_total_relation_size('fence.resources'))::float8`, &size)
		b.Printf("%-30s %.0f bytes on disk for each, indexes included\n", name, size/float64(n))
		d.exec(ctx, `TRUNCATE fence.arms, fence.resources`) // only a benchmark may do that
	}
}

// startShard starts a database with a gateway and a Redis node, and returns a cycle over HTTP of a resource of a caller.
func startShard(ctx context.Context, s *stack.Stack, prefix string) (database, func(ctx context.Context, caller int) error) {
	nodes, d := run.Must(s.Redis(ctx, 1)), startScale(ctx, s, prefix)
	g := run.Must(s.InProcess(ctx, gateway.Config{PostgresURL: d.As(stack.Gateway), RedisNodes: nodes.Nodes(), Logger: slog.New(slog.DiscardHandler)}))
	c := newClient(g.Addrs().API, "", scaleAt)
	cycle := func(ctx context.Context, caller int) error {
		return overHTTP(ctx, c, fmt.Sprintf("%s/%d", prefix, caller))
	}
	run.Check(cycle(ctx, 0)) // the gateway learns its PostgreSQL from the first lease
	return d, cycle
}

func databases(ctx context.Context, b *bench, s *stack.Stack) {
	measure := func(name string, callers int, cycle func(ctx context.Context, caller int) error) {
		b.Measure(ctx, run.Cell{Name: name, Workers: callers}, run.Contender{Name: "lease", Op: func(ctx context.Context, caller int, _ int64) error { return cycle(ctx, caller) }})
	}
	first, orders := startShard(ctx, s, "orders")
	measure("databases.1", scaleAt, orders)
	_, parcels := startShard(ctx, s, "parcels")
	measure("databases.2", scaleAt, func(ctx context.Context, caller int) error {
		if caller%2 == 0 {
			return orders(ctx, caller)
		}
		return parcels(ctx, caller)
	})
	first.exec(ctx, `BEGIN; LOCK TABLE fence.arms IN EXCLUSIVE MODE`) // arming blocks there
	defer first.exec(ctx, `ROLLBACK`)
	var still atomic.Int64
	var blocked sync.WaitGroup
	defer blocked.Wait()
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	for caller := range scaleAt / 2 {
		blocked.Go(func() {
			for waiting.Err() == nil {
				if orders(waiting, caller) == nil {
					still.Add(1)
				}
			}
		})
	}
	measure("databases.1-of-2-blocked", scaleAt/2, parcels)
	b.Printf("the other one gave %d leases\n", still.Load())
}

// usedOnce arms a step of names, and ends the previous step, leaving the rows as the fence's own functions do, in
// separate transactions. $1 is the first number of a step, $2 its length, $3 spreads the numbers over all names; with 1
// they stay in order.
var usedOnce = []string{
	`INSERT INTO fence.arms SELECT 'orders/' || lpad((n * $3::bigint % 1000000000)::text, 9, '0') FROM generate_series($1::bigint, $1 + $2 - 1) n`,
	`INSERT INTO fence.resources (resource, token, seal, holder, armed_at)
	 SELECT 'orders/' || lpad((n * $3::bigint % 1000000000)::text, 9, '0'), 1, sha256(n::text::bytea), 'bench', clock_timestamp()
	   FROM generate_series($1::bigint, $1 + $2 - 1) n`,
	`UPDATE fence.resources r SET ended_at = clock_timestamp()
	   FROM generate_series($1::bigint - $2, $1 - 1) n WHERE r.resource = 'orders/' || lpad((n * $3::bigint % 1000000000)::text, 9, '0')`,
}

// scatter is coprime to 10^9, so each number gets another name.
const scatter = 387420489

// scaleNames measures what names that are used once leave behind: half of those that may live is armed at a time, then
// the previous half is ended and retired by fence.retire, and then a plain VACUUM runs.
func scaleNames(spread int64) func(context.Context, *bench, *stack.Stack) {
	return func(ctx context.Context, b *bench, s *stack.Stack) {
		d := startScale(ctx, s, "")
		all, live := 10_000_000, 100_000
		if b.Quick {
			all, live = 100_000, 20_000
		}
		b.Printf("%10s %10s %12s %12s %12s %12s\n", "used once", "live", "MB", "of tables", "of indexes", "floors")
		step, begun := live/2, time.Now()
		for first := 0; first < all; first += step {
			for _, sql := range usedOnce {
				d.exec(ctx, sql, first, step, spread)
			}
			for last := new(""); last != nil; { // goes through all names once
				run.Check(d.admin.QueryRow(ctx, `SELECT last FROM fence.retire('0', $1, 1000)`, *last).Scan(&last))
			}
			d.exec(ctx, `VACUUM fence.arms, fence.resources, fence.floors`)
			if used := first + step; used >= all || used%max(step, all/20) < step {
				var live int
				var whole, tables, indexes, floors float64
				d.ask(ctx, sqlLeft, &live, &whole, &tables, &indexes, &floors)
				b.Printf("%10d %10d %12.1f %12.1f %12.1f %12.1f\n", used, live, whole, tables, indexes, floors)
			}
		}
		b.Printf("%10d in %v\n", all, time.Since(begun).Round(time.Second))
	}
}

const sqlLeft = `SELECT (SELECT count(*) FROM fence.resources), (sum(pg_total_relation_size(c.oid)) / 1e6)::float8,
       (sum(pg_table_size(c.oid)) / 1e6)::float8, (sum(pg_indexes_size(c.oid)) / 1e6)::float8, (pg_total_relation_size('fence.floors') / 1e6)::float8
  FROM pg_class c WHERE c.oid IN ('fence.arms'::regclass, 'fence.resources'::regclass, 'fence.floors'::regclass)`
