// Package fenced makes a [lock.Locker] of what a program has: go-redis clients and a pgx pool. Its leases are fenced in
// the pool's database.
//
//	locks, err := fenced.New(ctx, pool, redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//	return locks.Do(ctx, "orders/1001", func(ctx context.Context, grant fence.Grant) error {
//		return pgfence.InTx(ctx, pool, grant, func(tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = 1001")
//			return err
//		})
//	})
package fenced

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// retryEvery is the interval of attempts to start.
const retryEvery = 500 * time.Millisecond

// New returns a Locker over the servers of 1, 3, 5, … clients, whose leases raise the fence in the pool's database. It
// admits the nodes of a new group, and returns once a quorum grants leases, or with an error when ctx ends or when
// something has to be repaired. Nodes that were restarted grant after their quarantine: a minute, or less if the other
// nodes allow it.
//
// The pool's login is a member of fence_gateway; the fence's schema is there ("fencegate migrate up"). The clients are
// not used afterwards, as [lock.NodesOf] describes, and the pool stays the caller's: close it after the Locker.
func New(ctx context.Context, pool *pgxpool.Pool, clients ...redis.UniversalClient) (*lock.Locker, error) {
	nodes, err := lock.NodesOf(clients...)
	if err != nil {
		return nil, err
	}
	prefix, err := pgfence.KeyPrefix(pool)(ctx)
	if err != nil {
		return nil, err
	}
	fence := pgfence.New(pool)
	l, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: lock.Prefix(prefix), Armer: fence, Epochs: fence})
	if err != nil {
		return nil, err
	}
	if err := start(ctx, l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func start(ctx context.Context, l *lock.Locker) error {
	for {
		err := admin.Of(l).Init(ctx)
		if err == nil || !lock.Retryable(err) && !errors.Is(err, lock.ErrNodeTimeout) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-time.After(retryEvery):
		}
	}
}
