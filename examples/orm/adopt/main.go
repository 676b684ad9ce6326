// Command adopt is an application from before fencegate: a GORM model, a table, and a save. With -fenced it takes a
// lease, and its contexts carry the grant; run.sh has the steps in between.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
)

// Order is a row of the table orders.
type Order struct {
	ID     int64
	Status string
}

func main() {
	fenced := flag.Bool("fenced", false, "save under a lease")
	flag.Parse()
	if err := run(context.Background(), *fenced); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, fenced bool) error {
	db, err := pgxsql.Open(os.Getenv("DATABASE_URL")) // 1: was sql.Open
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	if err != nil {
		return err
	}
	if err := orm.AutoMigrate(&Order{}); err != nil {
		return err
	}
	if fenced {
		gateway, err := client.New(client.Config{URL: os.Getenv("FENCEGATE_GATEWAY")})
		if err != nil {
			return err
		}
		lease, err := gateway.Acquire(ctx, client.AcquireRequest{Resource: "orders/1001", TTL: 30 * time.Second, Wait: 20 * time.Second})
		if err != nil {
			return err
		}
		defer func() { _ = gateway.Release(context.WithoutCancel(ctx), lease.Handle) }()
		grant, err := lease.Grant()
		if err != nil {
			return err
		}
		ctx = sqlfence.WithGrant(ctx, grant) // 2: was not there
	}
	if err := orm.WithContext(ctx).Save(&Order{ID: 1001, Status: "paid"}).Error; err != nil {
		return err
	}
	fmt.Println("saved")
	return nil
}
