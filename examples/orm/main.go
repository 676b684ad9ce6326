// Command orm puts an object mapper (GORM) under a fencing token: a lease from
// Redis, a fence in PostgreSQL, and a pool of database/sql that presents the grant
// of each context.
//
// Two workers save the same order. The first one loses its lease without
// noticing; its save is refused, and the second one's work remains.
//
//	go run ./cmd/fencegate dev --ephemeral -- go run -C examples/orm .
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver for arming; lib/pq works too
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
	"github.com/fencegate/fencegate/lock"
)

// Order is a row of the guarded table orders.
type Order struct {
	ID     int64
	Status string
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	// Arming needs a login in the role fence_gateway; writing, one in fence_writer.
	arming, err := sql.Open("pgx", os.Getenv("ARMING_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { _ = arming.Close() }()
	db, err := pgxsql.Open(os.Getenv("DATABASE_URL")) // instead of sql.Open: contexts carry grants
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	if err != nil {
		return err
	}
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
	if err := save(ctx, orm, current, Order{ID: 1001, Status: "paid by worker 2"}); err != nil {
		return err
	}
	fmt.Printf("worker 2 acquired %s and saved\n", current)

	// Worker 1 resumes and saves with its old token.
	err = save(ctx, orm, paused, Order{ID: 1001, Status: "paid by worker 1"})
	if !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("worker 1 should have been refused as stale; got: %w", err)
	}
	fmt.Printf("worker 1 was refused: %v\n", err)
	return remains(ctx, orm, "paid by worker 2")
}

// newLocker connects leases from Redis with the fence that each of them arms.
func newLocker(arming *sql.DB) (*lock.Locker, error) {
	// Beside gateways that lease over Redis nodes which outlive them, use pgfence.New on a pgxpool.Pool, as Armer and as
	// Epochs: all Lockers of a group have Epochs, or none has. The nodes of fencegate dev end with it.
	return lock.New(lock.Config{
		Nodes: nodes(), Armer: sqlfence.New(arming),
		KeyPrefix:   sqlfence.KeyPrefix(arming), // the nodes may also serve other databases
		NodeTimeout: time.Second,                // generous: these nodes run on a busy machine
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

// save saves the order under a grant. The mapper's own transaction
// commits only while the grant is the newest one of its resource.
func save(ctx context.Context, orm *gorm.DB, grant fence.Grant, order Order) error {
	return orm.WithContext(sqlfence.WithGrant(ctx, grant)).Save(&order).Error
}

// remains checks that the stale save changed nothing.
func remains(ctx context.Context, orm *gorm.DB, status string) error {
	var order Order
	if err := orm.WithContext(ctx).First(&order, 1001).Error; err != nil {
		return err
	}
	fmt.Printf("the order is %q\n", order.Status)
	if order.Status != status {
		return errors.New("a stale save landed")
	}
	return nil
}

func createTable(ctx context.Context, db *sql.DB) error {
	for _, query := range []string{
		"CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, status text NOT NULL)",
		"SELECT fence.unprotect('orders')",
		"INSERT INTO orders VALUES (1001, 'new') ON CONFLICT (id) DO UPDATE SET status = 'new'",
		"SELECT fence.protect('orders', under => 'orders/')",
	} {
		if _, err := db.ExecContext(ctx, query); err != nil {
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
