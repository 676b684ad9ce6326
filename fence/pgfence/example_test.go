//nolint:testableexamples // they need a database
package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

var (
	ctx   = context.Background()
	pool  *pgxpool.Pool // connected to a database with fencegate's migrations
	grant fence.Grant   // from the gateway, or from FENCE_RESOURCE and FENCE_TOKEN
)

func ExampleInTx() {
	err := pgfence.InTx(ctx, pool, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE orders SET status = 'paid' WHERE id = 1001`)
		return err
	})
	switch {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("a newer holder took over; nothing was written")
	case errors.Is(err, fence.ErrUnknown):
		fmt.Println("the connection was lost during COMMIT; look before acting")
	case err != nil:
		fmt.Println("nothing was written:", err)
	}
}

func ExampleInTxWith() {
	opts := pgx.TxOptions{IsoLevel: pgx.Serializable}
	err := pgfence.InTxWith(ctx, pool, opts, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance - 10 WHERE id = 7`)
		return err
	})
	if err != nil {
		log.Print(err)
	}
}

// For a program that begins and commits itself.
func ExampleUse() {
	archive := func(tx pgx.Tx) error {
		if err := pgfence.Use(ctx, tx, grant); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DELETE FROM drafts WHERE order_id = 1001`)
		return pgfence.Translate(err)
	}
	if err := pgx.BeginFunc(ctx, pool, archive); errors.Is(err, fence.ErrStale) {
		fmt.Println("a newer holder took over; nothing was written")
	}
}

// For a program that presents its grant with the connection (PGOPTIONS) and uses
// no function of this package to write.
func ExampleTranslate() {
	_, err := pool.Exec(ctx, `UPDATE orders SET status = 'paid' WHERE id = 1001`)
	if stale, ok := errors.AsType[*fence.StaleError](pgfence.Translate(err)); ok {
		fmt.Printf("%s is at token %d by now\n", stale.Resource, stale.Recorded)
	}
}

// The last step of acquiring: whoever calls it has got the token from somewhere
// that gives each token once.
func ExampleFence_Arm() {
	f := pgfence.New(pool)
	seal := fence.NewSeal()
	err := f.Arm(ctx, fence.Arming{Resource: "orders/1001", Token: 35, SealHash: seal.Hash(), Holder: "worker-b"})
	not, overtaken := errors.AsType[*fence.NotRaisedError](err)
	switch {
	case overtaken:
		fmt.Println("take a token above", not.Recorded)
	case errors.Is(err, fence.ErrUndrained), errors.Is(err, fence.ErrUnknown):
		fmt.Println("arm the same token and seal again:", err)
	case err == nil:
		fmt.Println("write under", fence.Grant{Resource: "orders/1001", Token: 35, Seal: seal})
	}
}

func ExampleFence_Revoke() {
	token, err := pgfence.New(pool).Revoke(ctx, "orders/1001", "operator")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the holder's writes are refused; the fence stands at", token)
}

func ExampleFence_Inspect() {
	record, err := pgfence.New(pool).Inspect(ctx, "orders/1001")
	if errors.Is(err, pgfence.ErrNoFence) {
		fmt.Println("never acquired")
		return
	}
	fmt.Println(record.Holder, "holds token", record.Token)
}
