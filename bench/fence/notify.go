package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

const (
	channel       = "bench_superseded"
	sqlListen     = "LISTEN " + channel
	sqlArmAndTell = `SELECT fence.arm($1, $2, $3, 'bench'), pg_notify('` + channel + `', $1)`
	// As gateways do: synchronous_commit off, several in one transaction.
	sqlTell = `SELECT set_config('synchronous_commit', 'off', true), pg_notify('` + channel + `', said) FROM unnest($1::text[]) said`
	// tellEvery is the gateways' shortest interval between two notifying transactions.
	tellEvery = 20 * time.Millisecond
	// listeners is the number of listening gateways.
	listeners = 2
)

// teller notifies of armings in its own transactions, as gateways do.
type teller struct {
	mu    sync.Mutex
	armed map[string]struct{}
}

func (t *teller) say(resource string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed[resource] = struct{}{}
}

func (t *teller) run(ctx context.Context, pool *pgxpool.Pool) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var all []string
		t.mu.Lock()
		for resource := range t.armed {
			all = append(all, resource)
		}
		clear(t.armed)
		t.mu.Unlock()
		if len(all) > 0 {
			_, _ = pool.Exec(ctx, sqlTell, all)
		}
	}
}

// listen receives the notifications until ctx ends, like a gateway.
func listen(ctx context.Context, config *pgx.ConnConfig, others *sync.WaitGroup) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, sqlListen); err != nil {
		return errors.Join(err, conn.Close(ctx))
	}
	others.Go(func() {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
		}
	})
	return nil
}

// armings gives each client its own resource, and returns the next arming of it.
func armings(clients int) func(*client) fence.Arming {
	last := make([]fence.Token, clients)
	begun := time.Now().UnixMicro() // above the values of earlier cells
	return func(c *client) fence.Arming {
		last[c.id]++
		return fence.Arming{Resource: fmt.Sprintf("arms/%d", c.id), Token: fence.Token(begun) + last[c.id], SealHash: fence.NewSeal().Hash(), Holder: "bench"}
	}
}

// notifyPart compares arming with arming and notifying the gateways, within the arming transaction and in a separate
// one. Each client has its own resource.
func (p plan) notifyPart(ctx context.Context, w *world, in cell) ([]goal, error) {
	ctx, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	config, err := pgxpool.ParseConfig(w.gateway.String())
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MaxConns = int32(in.clients)+1, int32(in.clients)+1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	for range listeners {
		if err := listen(ctx, config.ConnConfig.Copy(), &others); err != nil {
			return nil, err
		}
	}
	notices := &teller{armed: make(map[string]struct{})}
	others.Go(func() { notices.run(ctx, pool) })

	f, next := pgfence.New(pool), armings(in.clients)
	clients := make([]*client, in.clients)
	for i := range clients {
		clients[i] = &client{id: i}
	}
	results, err := p.measure(ctx, clients, in, []contender{
		{name: "arm", op: func(ctx context.Context, c *client) error { return f.Arm(ctx, next(c)) }},
		{name: "told-after", op: func(ctx context.Context, c *client) error {
			a := next(c)
			err := f.Arm(ctx, a)
			notices.say(a.Resource)
			return err
		}},
		{name: "told-within", op: func(ctx context.Context, c *client) error {
			a := next(c)
			_, err := pool.Exec(ctx, sqlArmAndTell, a.Resource, int64(a.Token), a.SealHash)
			return err
		}},
	}, 0, nil)
	if err != nil {
		return nil, err
	}
	return compare(results, in, "told-after", "arm", 0.95), nil
}
