//nolint:testableexamples // they need a database
package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

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

// Use is for a program that begins and commits itself.
func ExampleUse() {
	archive := func(tx pgx.Tx) error {
		if err := pgfence.Use(ctx, tx, grant); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DELETE FROM drafts WHERE order_id = 1001`)
		return pgfence.Translate(err)
	}
	switch err := pgx.BeginFunc(ctx, pool, archive); {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("a newer holder took over; nothing was written")
	case err != nil:
		log.Print(err) // if it is an error of COMMIT, the rows may be gone
	}
}

// Translate is for a program that presents its grant with the connection (PGOPTIONS) and does not use this package to
// write.
func ExampleTranslate() {
	_, err := pool.Exec(ctx, `UPDATE orders SET status = 'paid' WHERE id = 1001`)
	if stale, ok := errors.AsType[*fence.StaleError](pgfence.Translate(err)); ok {
		fmt.Printf("%s is at token %d by now\n", stale.Resource, stale.Recorded)
	}
}

// Arm is the last step of an acquisition: the caller has the token from a source that issues each token once.
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
	if errors.Is(err, fence.ErrNoFence) {
		fmt.Println("never acquired")
		return
	}
	fmt.Println(record.Holder, "holds token", record.Token)
}

// With several grants each guarded table uses the one that it needs.
func ExampleInTxAll() {
	customer := fence.Grant{Resource: "users/7", Token: 2, Seal: fence.NewSeal()}
	opts := pgfence.TxOptions{Resolve: 10 * time.Second} // resolves a lost COMMIT
	err := pgfence.InTxAll(ctx, pool, opts, []fence.Grant{grant, customer}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE orders SET status = 'paid' WHERE id = 1001`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE users SET balance = balance - 10 WHERE id = 7`)
		return err
	})
	if err != nil {
		log.Print(err)
	}
}

// ExecBatch runs a whole transaction in one round trip.
func ExampleExecBatch() {
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE orders SET status = 'paid' WHERE id = $1`, 1001)
	batch.Queue(`INSERT INTO log (order_id) VALUES ($1)`, 1001)
	tags, err := pgfence.ExecBatch(ctx, pool, pgx.TxOptions{}, []fence.Grant{grant}, batch)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tags)
}

func ExampleOutcome() {
	err := pgfence.InTx(ctx, pool, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE orders SET status = 'paid' WHERE id = 1001`)
		return err
	})
	if errors.Is(err, fence.ErrUnknown) {
		err = pgfence.Outcome(ctx, pool, err)
	}
	switch {
	case err == nil:
		fmt.Println("committed")
	case errors.Is(err, fence.ErrUnknown):
		fmt.Println("look at the data before acting")
	default:
		fmt.Println("nothing was written:", err)
	}
}

// Configure is needed if a standby is synchronous.
func ExampleConfigure() {
	config, err := pgxpool.ParseConfig("postgres:///app")
	if err != nil {
		log.Fatal(err)
	}
	pgfence.Configure(config)
	if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		log.Fatal(err)
	}
}

func ExampleFence_Arm_several() {
	first, second := fence.NewSeal(), fence.NewSeal()
	err := pgfence.New(pool).Arm(ctx,
		fence.Arming{Resource: "orders/1001", Token: 35, SealHash: first.Hash(), Holder: "worker-b"},
		fence.Arming{Resource: "users/7", Token: 3, SealHash: second.Hash(), Holder: "worker-b"},
	)
	if not, overtaken := errors.AsType[*fence.NotRaisedError](err); overtaken {
		fmt.Printf("nothing was raised: take a token of %q above %d\n", not.Resource, not.Recorded)
	}
}
