//nolint:testableexamples // they need Redis and a database
package continuity_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/continuity"
)

// A locker that reports when PostgreSQL may have forgotten fences.
func ExampleOpen() {
	ctx := context.Background()
	pool, err := pgxpool.ParseConfig("postgres://locker@db.example:5432/app") // a login in fence_gateway
	if err != nil {
		log.Fatal(err)
	}
	nodes := []lock.Node{{Addr: "r1:6379"}, {Addr: "r2:6379"}, {Addr: "r3:6379"}}
	conn, err := pgx.ConnectConfig(ctx, pool.ConnConfig)
	if err != nil {
		log.Fatal(err)
	}
	prefix, err := pgfence.KeyPrefix(conn)(ctx) // the prefix that the gateways of this database use
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		log.Fatal(err)
	}
	armer, err := continuity.Open(ctx, continuity.Config{Pool: pool, Nodes: nodes, KeyPrefix: lock.Prefix(prefix)})
	if err != nil {
		log.Fatal(err)
	}
	defer armer.Close()
	locker, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: lock.Prefix(prefix), Armer: armer, Epochs: armer})
	if err != nil {
		log.Print(err)
		return
	}
	defer locker.Close()

	lease, err := locker.Acquire(ctx, "orders/1001")
	if forgotten, ok := errors.AsType[*continuity.ForgottenError](err); ok {
		fmt.Println(forgotten) // … run: fencegate fence invalidate-all --yes
		return
	}
	if err != nil {
		log.Print(err)
		return
	}
	_ = lease.Release(ctx)
}
