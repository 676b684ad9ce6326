//nolint:testableexamples // they need Redis and a database
package fenced_test

import (
	"context"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock/fenced"
)

// The pool's login is a member of fence_gateway, to raise the fence, and may write the table.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	locks, err := fenced.New(ctx, pool, redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		panic(err)
	}
	defer locks.Close()
	err = locks.Do(ctx, "orders/1001", func(ctx context.Context, grant fence.Grant) error {
		return pgfence.InTx(ctx, pool, grant, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = 1001")
			return err
		})
	})
	if err != nil {
		panic(err) // errors.Is(err, lock.ErrLost): the lease ended before the work; fence.ErrStale: the write was refused
	}
}
