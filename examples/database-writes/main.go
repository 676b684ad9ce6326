// Command database-writes wraps database writes with a fencing token: a lease
// from Redis, a fence in PostgreSQL, and a transaction that the fence guards.
//
// Two workers change the same order. The first one loses its lease without
// noticing; its transaction is refused, and the second one's work remains.
//
//	go run ./cmd/fencegate dev --ephemeral -- go run ./examples/database-writes
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	// Arming needs a login in the role fence_gateway; writing, one in fence_writer.
	arming, err := pgxpool.New(ctx, os.Getenv("ARMING_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer arming.Close()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := createTable(ctx, db); err != nil {
		return err
	}

	locker, err := newLocker(arming)
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close() }()

	// Worker 1 acquires, and then pauses. It never checks its lease again.
	_, paused, err := acquire(ctx, locker, lock.WithTTL(300*time.Millisecond))
	if err != nil {
		return err
	}
	fmt.Printf("worker 1 acquired %s, and pauses\n", paused)

	// Worker 2 waits until that lease has expired, and does the work.
	second, current, err := acquire(ctx, locker)
	if err != nil {
		return err
	}
	defer func() { _ = second.Release(ctx) }() // runs even if ctx has ended
	if err := pay(ctx, db, current, "paid by worker 2"); err != nil {
		return err
	}
	fmt.Printf("worker 2 acquired %s and wrote\n", current)

	// Worker 1 resumes and writes with its old token.
	err = pay(ctx, db, paused, "paid by worker 1")
	if !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("worker 1 should have been refused as stale; got: %w", err)
	}
	fmt.Printf("worker 1 was refused: %v\n", err)

	var status string
	if err := db.QueryRow(ctx, "SELECT status FROM orders WHERE id = 1001").Scan(&status); err != nil {
		return err
	}
	fmt.Printf("the order is %q\n", status)
	return nil
}

// newLocker connects leases from Redis with the fence that each of them arms.
func newLocker(arming *pgxpool.Pool) (*lock.Locker, error) {
	f := pgfence.New(arming)
	return lock.New(lock.Config{
		Nodes: nodes(), Armer: f, Epochs: f,
		KeyPrefix:   pgfence.KeyPrefix(arming), // the nodes may also serve other databases
		NodeTimeout: time.Second,               // generous: these nodes run on a busy machine
	})
}

// acquire waits for the order's lease, and returns it with the grant that its writes present.
func acquire(ctx context.Context, locker *lock.Locker, opts ...lock.AcquireOption) (*lock.Lease, fence.Grant, error) {
	lease, err := locker.Acquire(ctx, "orders/1001", opts...)
	if err != nil {
		return nil, fence.Grant{}, err
	}
	grant, err := lease.Grant()
	return lease, grant, err
}

// pay changes the order under a grant. The transaction commits only while the grant is the newest one of its resource.
func pay(ctx context.Context, db *pgxpool.Pool, grant fence.Grant, status string) error {
	return pgfence.InTx(ctx, db, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE orders SET status = $1 WHERE id = 1001", status)
		return err
	})
}

func createTable(ctx context.Context, db *pgxpool.Pool) error {
	for _, sql := range []string{
		"CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, status text NOT NULL)",
		"SELECT fence.unprotect('orders')",
		"INSERT INTO orders VALUES (1001, 'new') ON CONFLICT (id) DO UPDATE SET status = 'new'",
		"SELECT fence.protect('orders', under => 'orders/')",
	} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func nodes() []lock.Node {
	var nodes []lock.Node
	for addr := range strings.SplitSeq(os.Getenv("FENCEGATE_REDIS"), ",") {
		nodes = append(nodes, lock.Node{Addr: addr, Password: os.Getenv("FENCEGATE_REDIS_PASSWORD")})
	}
	return nodes
}
