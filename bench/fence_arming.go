package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/stack"
)

const (
	// sqlUpsert records as much as arming does, with a plain statement.
	sqlUpsert = `INSERT INTO plain AS p (resource, token, seal, holder, armed_at) VALUES ($1, $2, $3, $4, now())
	ON CONFLICT (resource) DO UPDATE SET token = excluded.token, seal = excluded.seal, holder = excluded.holder, armed_at = excluded.armed_at
	WHERE p.token < excluded.token`
	sqlArm = `SELECT fence.arm($1, $2, $3, $4)`

	channel         = "bench_superseded"
	sqlArmAndNotify = `SELECT fence.arm($1, $2, $3, $4), pg_notify('` + channel + `', $1)`
	// As gateways do: synchronous_commit off, several in one transaction.
	sqlNotify = `SELECT set_config('synchronous_commit', 'off', true), pg_notify('` + channel + `', resource) FROM unnest($1::text[]) resource`
	// notifyEvery is the gateways' shortest interval between two notifying transactions.
	notifyEvery = 20 * time.Millisecond
	// listeners is the number of listening gateways.
	listeners = 2
)

// armings gives each client its own resource, like leases of different resources, and returns the next arming of it.
func armings(clients int) func(worker int) fence.Arming {
	last := make([]fence.Token, clients) // of each client, over all contenders
	begun := time.Now().UnixMicro()      // above the tokens of earlier cells
	return func(worker int) fence.Arming {
		last[worker]++
		return fence.Arming{Resource: "arms/" + strconv.Itoa(worker), Token: fence.Token(begun) + last[worker], SealHash: fence.NewSeal().Hash(), Holder: "bench"}
	}
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// armOnce is a single arming.
func armOnce(ctx context.Context, on querier, a fence.Arming) error {
	var armed bool
	err := on.QueryRow(ctx, sqlArm, a.Resource, int64(a.Token), a.SealHash, a.Holder).Scan(&armed)
	if err == nil && !armed {
		err = errNoRow
	}
	return err
}

// arming makes a contender whose operation is to arm.
func (w *fenceWorld) arming(name string, next func(int) fence.Arming, op func(context.Context, fence.Arming) error) run.Contender {
	return run.Contender{Name: name, Meters: []run.Meter{w.written()}, Op: func(ctx context.Context, worker int, _ int64) error {
		return op(ctx, next(worker))
	}}
}

// fenceArm compares arming with a plain upsert, and arming in groups with single armings.
func fenceArm(ctx context.Context, b *bench, s *stack.Stack, w *fenceWorld, c fenceCell) {
	pool := gatewayPool(ctx, s, w.Postgres, c.Workers)
	f, next := pgfence.New(pool), armings(c.Workers)
	updates := func() (all, hot int) {
		w.ask(ctx, `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'fence.resources'::regclass`, &all, &hot)
		return all, hot
	}
	allBefore, hotBefore := updates()
	results := b.Measure(ctx, c.Cell,
		w.arming("upsert", next, func(ctx context.Context, a fence.Arming) error {
			_, err := pool.Exec(ctx, sqlUpsert, a.Resource, int64(a.Token), a.SealHash, a.Holder)
			return err
		}),
		w.arming("arm-single", next, func(ctx context.Context, a fence.Arming) error { return armOnce(ctx, pool, a) }),
		w.arming("arm", next, func(ctx context.Context, a fence.Arming) error { return f.Arm(ctx, a) }))
	c.goal(b, results, "arm", "upsert", 0.8, "")
	grouped, single := results["arm"], results["arm-single"]
	if grouped == nil || single == nil {
		return
	}
	// Many go faster in groups, and a single one is at most a tenth slower, which is noise.
	switch name := "fence." + c.Name + ".groups"; c.Workers {
	case 1:
		a, z := grouped.Quantile(0.5), single.Quantile(0.5)
		b.Add(run.Goal{Name: name + ".p50", Ours: a.String(), Peer: "single:" + z.String(), Ratio: float64(z) / float64(a), Want: 0.9})
	case 64:
		b.AtLeast(name, results, "arm", "arm-single", 3)
	case 16:
		pool.Close() // sessions report their statistics when they end
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		all, hot, least := 0, 0, len(grouped.Times)+len(single.Times)
		run.Check(stack.Until(bounded, "the statistics of updates", func(context.Context) error {
			if all, hot = updates(); all-allBefore < least {
				return fmt.Errorf("%d of %d are reported", all-allBefore, least)
			}
			return nil
		}))
		all, hot = all-allBefore, hot-hotBefore
		b.Add(run.Goal{Name: "fence.hot.c16." + c.commit, Ours: strconv.Itoa(hot), Peer: fmt.Sprintf("updates:%d", all), Ratio: float64(hot) / float64(all), Want: 0.99})
	}
}

// announcer notifies of armings in its own transactions, as gateways do.
type announcer struct {
	mu    sync.Mutex
	armed map[string]struct{}
}

func (t *announcer) add(resource string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed[resource] = struct{}{}
}

func (t *announcer) run(ctx context.Context, pool *pgxpool.Pool) {
	tick := time.NewTicker(notifyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		t.mu.Lock()
		all := slices.Collect(maps.Keys(t.armed))
		clear(t.armed)
		t.mu.Unlock()
		if len(all) > 0 {
			_, _ = pool.Exec(ctx, sqlNotify, all)
		}
	}
}

// listen receives the notifications until ctx ends, like a gateway.
func (w *fenceWorld) listen(ctx context.Context, others *sync.WaitGroup) {
	conn := run.Must(pgx.Connect(ctx, w.As(stack.Gateway)))
	run.Must(conn.Exec(ctx, "LISTEN "+channel))
	others.Go(func() {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		for err := error(nil); err == nil; {
			_, err = conn.WaitForNotification(ctx)
		}
	})
}

// fenceNotify compares arming with arming and notifying the gateways, within the arming transaction and in a separate
// one.
func fenceNotify(ctx context.Context, b *bench, s *stack.Stack, w *fenceWorld, c fenceCell) {
	pool := gatewayPool(ctx, s, w.Postgres, c.Workers+1)
	var others sync.WaitGroup
	defer others.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for range listeners {
		w.listen(ctx, &others)
	}
	notices := &announcer{armed: make(map[string]struct{})}
	others.Go(func() { notices.run(ctx, pool) })
	f, next := pgfence.New(pool), armings(c.Workers)
	results := b.Measure(ctx, c.Cell,
		w.arming("arm", next, func(ctx context.Context, a fence.Arming) error { return f.Arm(ctx, a) }),
		w.arming("told-after", next, func(ctx context.Context, a fence.Arming) error {
			err := f.Arm(ctx, a)
			notices.add(a.Resource)
			return err
		}),
		w.arming("told-within", next, func(ctx context.Context, a fence.Arming) error {
			_, err := pool.Exec(ctx, sqlArmAndNotify, a.Resource, int64(a.Token), a.SealHash, a.Holder)
			return err
		}))
	c.goal(b, results, "told-after", "arm", 0.95, "")
}
