package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// sqlUpsert records as much as arming does, with a plain statement.
const sqlUpsert = `INSERT INTO plain AS p (resource, token, seal, holder, armed_at) VALUES ($1, $2, $3, $4, now())
	ON CONFLICT (resource) DO UPDATE SET token = excluded.token, seal = excluded.seal, holder = excluded.holder, armed_at = excluded.armed_at
	WHERE p.token < excluded.token`

// sqlArm is a single arming.
const sqlArm = `SELECT fence.arm($1, $2, $3, $4)`

// armPart compares raise and drain with a plain upsert, and arming in groups with single armings. Each client has its
// own resource, like leases of different resources.
func (p plan) armPart(ctx context.Context, w *world, in cell) ([]goal, error) {
	config, err := pgxpool.ParseConfig(w.gateway.String())
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MaxConns = int32(in.clients), int32(in.clients)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	clients := make([]*client, in.clients)
	for i := range clients {
		clients[i] = &client{id: i}
	}
	contenders := armContenders(pool, in.clients)
	before, err := w.updates(ctx)
	if err != nil {
		return nil, err
	}
	results, err := p.measure(ctx, clients, in, contenders, 0, nil)
	if err != nil {
		return nil, err
	}
	for _, one := range contenders {
		if err := p.wal(ctx, w, clients, in, one); err != nil {
			return nil, err
		}
	}
	goals := append(compare(results, in, "arm", "upsert", 0.8), groups(results, in)...)
	if in.clients != 16 {
		return goals, nil
	}
	pool.Close() // sessions report their statistics when they end
	after, err := w.updatesAfter(ctx, before.all+results["arm"].ops+results["arm-single"].ops)
	if err != nil {
		return nil, err
	}
	all, hot := after.all-before.all, after.hot-before.hot
	return append(goals, goal{
		fmt.Sprintf("fence.hot.c16.%s", in.commit), fmt.Sprintf("%d", hot), fmt.Sprintf("updates:%d", all),
		float64(hot) / float64(all), 0.99,
	}), nil
}

// armContenders are the ways to raise a client's fence.
func armContenders(pool *pgxpool.Pool, clients int) []contender {
	f := pgfence.New(pool)
	last := make([]fence.Token, clients) // of each client, over all contenders
	begun := time.Now().UnixMicro()      // above the values of earlier cells
	next := func(c *client) (resource string, token fence.Token) {
		last[c.id]++
		return fmt.Sprintf("arms/%d", c.id), fence.Token(begun) + last[c.id]
	}
	return []contender{
		{name: "upsert", op: func(ctx context.Context, c *client) error {
			resource, token := next(c)
			_, err := pool.Exec(ctx, sqlUpsert, resource, int64(token), fence.NewSeal().Hash(), "bench")
			return err
		}},
		{name: "arm-single", op: func(ctx context.Context, c *client) error {
			resource, token := next(c)
			var armed bool
			err := pool.QueryRow(ctx, sqlArm, resource, int64(token), fence.NewSeal().Hash(), "bench").Scan(&armed)
			if err == nil && !armed {
				err = errNoRow
			}
			return err
		}},
		{name: "arm", op: func(ctx context.Context, c *client) error {
			resource, token := next(c)
			return f.Arm(ctx, fence.Arming{Resource: resource, Token: token, SealHash: fence.NewSeal().Hash(), Holder: "bench"})
		}},
	}
}

// groups are the goals of arming in groups: many go faster, and a single one is at most a tenth slower, which is noise.
func groups(results map[string]*result, in cell) []goal {
	grouped, single := results["arm"], results["arm-single"]
	if grouped == nil || single == nil {
		return nil
	}
	name := fmt.Sprintf("fence.arm.c%d.%s.groups", in.clients, in.commit)
	switch in.clients {
	case 1:
		a, b := grouped.quantile(0.5), single.quantile(0.5)
		return []goal{{name + ".p50", a.String(), "single:" + b.String(), float64(b) / float64(a), 0.9}}
	case 64:
		return []goal{{name, fmt.Sprintf("%.0f/s", grouped.rate()), fmt.Sprintf("single:%.0f/s", single.rate()), median(grouped.ratios(single)), 3}}
	}
	return nil
}

// wal prints how much write-ahead log an operation writes.
func (p plan) wal(ctx context.Context, w *world, clients []*client, in cell, one contender) error {
	const position = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	var before, after int64
	var r result
	if err := w.admin.QueryRow(ctx, position).Scan(&before); err != nil {
		return err
	}
	if err := one.spin(ctx, clients, p.slice, 0, &r); err != nil {
		return err
	}
	if err := w.admin.QueryRow(ctx, position).Scan(&after); err != nil {
		return err
	}
	fmt.Printf("%-7s %-5s %-7d %-12s %10.0f bytes of WAL for each\n", in.part, in.commit, in.clients, one.name, float64(after-before)/float64(max(1, r.ops)))
	return nil
}

// updates counts the fences' updates, and the HOT ones among them.
type updates struct{ all, hot int }

func (w *world) updates(ctx context.Context) (u updates, err error) {
	err = w.admin.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'fence.resources'::regclass`).Scan(&u.all, &u.hot)
	return u, err
}

// updatesAfter waits until at least this many are reported.
func (w *world) updatesAfter(ctx context.Context, least int) (u updates, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for err == nil && u.all < least {
		if u, err = w.updates(ctx); err == nil {
			_, err = w.admin.Exec(ctx, `SELECT pg_sleep(0.02)`)
		}
	}
	return u, err
}
