//nolint:testableexamples // they need Redis
package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// Values that the examples assume.
var (
	ctx    = context.Background()
	arming *pgxpool.Pool // a login in fence_gateway
	leases *lock.Locker
)

func charge(context.Context, fence.Grant) error { return nil }

// NodesOf takes the clients that a program already has, for redsync or anything else.
func ExampleNodesOf() {
	clients := []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: "r1:6379"}),
		redis.NewClient(&redis.Options{Addr: "r2:6379"}),
		redis.NewClient(&redis.Options{Addr: "r3:6379"}),
	}
	nodes, err := lock.NodesOf(clients...)
	if err != nil {
		panic(err)
	}
	f := pgfence.New(arming)
	locker, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: pgfence.KeyPrefix(arming), Armer: f, Epochs: f})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	if err := admin.Of(locker).Init(ctx); err != nil { // at every start
		panic(err)
	}
}

func ExampleLocker_Do() {
	err := leases.Do(ctx, "orders/1001", func(ctx context.Context, grant fence.Grant) error {
		if err := charge(ctx, grant); err != nil { // ctx ends with the lease; the grant goes with each write
			return fmt.Errorf("charge: %w", err)
		}
		return nil
	})
	switch {
	case errors.Is(err, lock.ErrLost):
		fmt.Println("the lease was over before the work: check what the work did")
	case err != nil:
		fmt.Println(err)
	}
}

func ExampleLocker_Acquire() {
	lease, err := leases.Acquire(ctx, "orders/1001", lock.WithTTL(30*time.Second))
	if err != nil {
		panic(err)
	}
	defer lease.Release(ctx)
	grant, err := lease.Grant()
	if err == nil {
		err = charge(lease.Context(), grant)
	}
	if err == nil {
		err = lease.Extend(ctx, 30*time.Second)
	}
	fmt.Println(err)
}

// WithKeepAlive renews a lease in the background.
func ExampleWithKeepAlive() {
	lease, err := leases.Acquire(ctx, "orders/1001", lock.WithHolder("worker-b"), lock.WithKeepAlive(lock.KeepAlive{For: time.Hour}))
	if err != nil {
		panic(err)
	}
	defer lease.Release(ctx)
	fmt.Println("held for", lease.Deadline().Left(), "unless it is renewed")
}

// Source makes a Locker one of several sources of leases. leasing.Do works under a lease of any source.
func ExampleLocker_Source() {
	request := leasing.Request{Resource: "orders/1001", TTL: 30 * time.Second}
	err := leasing.Do(ctx, leases.Source(), request, time.Hour, charge)
	fmt.Println(err)
}

func ExampleLocker_TryAcquire() {
	lease, err := leases.TryAcquire(ctx, "orders/1001", lock.WithTTL(30*time.Second))
	var held *leasing.HeldError
	switch {
	case errors.As(err, &held):
		fmt.Println("held by", held.Holder, "for", held.RetryAfter)
	case err == nil:
		defer lease.Release(ctx)
	}
}

func ExampleWithOwner() {
	owner := lock.NewOwner() // for a request, a job, a saga
	outer, err := leases.Acquire(ctx, "orders/1001", lock.WithOwner(owner))
	if err != nil {
		panic(err)
	}
	defer outer.Release(ctx)
	inner, err := leases.Acquire(ctx, "orders/1001", lock.WithOwner(owner)) // the same lease and token, at once
	if err != nil {
		panic(err)
	}
	defer inner.Release(ctx)
}
