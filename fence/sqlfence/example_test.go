//nolint:testableexamples // they need a database
package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
)

var (
	ctx   = context.Background()
	db    *sql.DB     // connected to a database with fencegate's migrations
	grant fence.Grant // from the gateway, or from FENCE_RESOURCE and FENCE_TOKEN
)

func ExampleInTx() {
	err := sqlfence.InTx(ctx, db, grant, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE orders SET status = 'paid' WHERE id = 1001`)
		return err
	})
	switch {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("a newer holder took over; nothing was written")
	case errors.Is(err, fence.ErrUnknown):
		fmt.Println("the connection was lost during COMMIT; see Outcome")
	case err != nil:
		fmt.Println("nothing was written:", err)
	}
}

func ExampleInTxAll() {
	opts := sqlfence.TxOptions{
		TxOptions: sql.TxOptions{Isolation: sql.LevelSerializable},
		Resolve:   10 * time.Second, // resolves a lost COMMIT
	}
	err := sqlfence.InTxAll(ctx, db, opts, []fence.Grant{grant}, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM drafts WHERE order_id = 1001`)
		return err
	})
	if err != nil {
		log.Print(err)
	}
}

// Use is for a program, or an object mapper, that begins and commits itself.
func ExampleUse() {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	err = sqlfence.Use(ctx, tx, grant)
	if err == nil {
		_, err = tx.ExecContext(ctx, `DELETE FROM drafts WHERE order_id = 1001`)
	}
	if err == nil {
		err = tx.Commit()
	}
	switch err = sqlfence.Translate(err); {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("a newer holder took over")
	case err != nil:
		log.Print(err) // if it is an error of Commit, the rows may be gone
	}
}

func ExampleOutcome() {
	err := sqlfence.InTx(ctx, db, grant, func(*sql.Tx) error { return nil })
	if errors.Is(err, fence.ErrUnknown) {
		err = sqlfence.Outcome(ctx, db, err)
	}
	fmt.Println(err)
}

// WithGrant is for object mappers, and for code that begins its transactions itself: the context carries the grant.
func ExampleWithGrant() {
	db, err := pgxsql.Open("postgres://writer@localhost/app") // once, instead of sql.Open
	if err != nil {
		log.Fatal(err)
	}
	ctx := sqlfence.WithGrant(ctx, grant)
	_, err = db.ExecContext(ctx, `UPDATE orders SET status = 'paid' WHERE id = 1001`)
	if errors.Is(err, fence.ErrStale) {
		fmt.Println("a newer holder took over; nothing was written")
	}
}
