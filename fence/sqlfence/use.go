package sqlfence

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Tx is a transaction in which a grant is presented: a *sql.Tx, an object mapper's wrapper of one, or a *sql.Conn on
// which BEGIN was sent.
type Tx interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

var (
	_ Tx = (*sql.Tx)(nil)
	_ Tx = (*sql.Conn)(nil)
)

// Use presents grants for the rest of a transaction and checks them at once. It is for programs and object mappers
// that begin and commit themselves. The grants replace those presented before. An error is one of the fence's
// refusals, see [Translate], and fails the transaction. From here to its end, the grants cover everything that the
// transaction writes; a guarded table uses the one that it needs.
//
// After ROLLBACK TO a savepoint from before Use, present them again. An error of the caller's own COMMIT may mean that it
// is committed: it is not [fence.ErrUnknown], and [Outcome] can't resolve it.
func Use(ctx context.Context, tx Tx, grants ...fence.Grant) (err error) {
	if err := core.ValidateGrants(grants); err != nil {
		return err
	}
	if tx == nil {
		return errNoTx
	}
	query, args := core.SQLUseMarked, []any{grants[0].Resource, grants[0].Presented()}
	if len(grants) > 1 {
		query, args = core.SQLUseListMarked, []any{listOf(grants)}
	}
	// The statement is prepared, because some drivers can be set to write arguments into the text, where a seal must
	// not appear.
	stmt, err := tx.PrepareContext(ctx, query)
	if err != nil {
		return fmt.Errorf("use %s: %w", core.Named(grants), Translate(err))
	}
	defer func() { _ = stmt.Close() }() // on failure the transaction fails anyway
	if _, err := stmt.ExecContext(ctx, args...); err != nil {
		return fmt.Errorf("use %s: %w", core.Named(grants), Translate(err))
	}
	return nil
}

// listOf puts grants into one argument, because drivers differ in how they send arrays.
func listOf(grants []fence.Grant) string {
	type pair struct {
		R string `json:"r"`
		K string `json:"k"`
	}
	list := make([]pair, len(grants))
	for i, g := range grants {
		list[i] = pair{R: g.Resource, K: g.Presented()}
	}
	text, _ := json.Marshal(list) // strings always marshal
	return string(text)
}

// Check asks whether the grants that the transaction presents are still the recorded ones, before its next guarded
// write. An error is one of the fence's refusals, and fails the transaction.
func Check(ctx context.Context, tx Tx) error {
	if tx == nil {
		return errNoTx
	}
	if _, err := tx.ExecContext(ctx, core.SQLCheck); err != nil {
		return fmt.Errorf("check the grant: %w", Translate(err))
	}
	return nil
}

// Savepoint runs fn inside a savepoint of the transaction. If fn fails or panics, or ctx has ended, its changes are
// rolled back and the transaction can continue; the error is returned. If that fails too, the whole transaction is
// rolled back, if it has a method Rollback; InTx then returns [ErrTxEnded]. Savepoints nest.
func Savepoint(ctx context.Context, tx Tx, fn func() error) error {
	if tx == nil || fn == nil {
		return errNoTx
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	if err := savepoint(ctx, tx, "SAVEPOINT"); err != nil {
		return fmt.Errorf("savepoint: %w", Translate(err))
	}
	done := false
	defer func() {
		if !done { // fn panicked or called Goexit
			_ = takeBack(ctx, tx)
		}
	}()
	err := Translate(fn())
	done = true
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		if err = savepoint(ctx, tx, "RELEASE"); err == nil {
			return nil
		}
		err = fmt.Errorf("release savepoint: %w", Translate(err))
	}
	return errors.Join(err, takeBack(ctx, tx))
}

// savepoint sends a command for the latest savepoint. It does not end with ctx. If it is not answered in time, which
// savepoint is the latest is not known: all have the same name. The transaction is then given up.
func savepoint(ctx context.Context, tx Tx, command string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), savepointPatience)
	defer cancel()
	_, err := tx.ExecContext(ctx, command+" fencegate")
	if errors.Is(err, context.DeadlineExceeded) {
		giveUp(tx)
	}
	return err
}

// savepointPatience bounds each command for a savepoint.
const savepointPatience = 5 * time.Second

// takeBack rolls back to the latest savepoint and removes it.
func takeBack(ctx context.Context, tx Tx) error {
	err := savepoint(ctx, tx, "ROLLBACK TO")
	if err == nil {
		err = savepoint(ctx, tx, "RELEASE")
	}
	if err != nil {
		giveUp(tx)
	}
	return err
}

// giveUp rolls back a transaction that may hold changes of a failed savepoint, so that they are never committed.
func giveUp(tx Tx) {
	if tx, ok := tx.(interface{ Rollback() error }); ok {
		_ = tx.Rollback() // on failure the driver closes the connection, which rolls back too
	}
}

var errNoTx = &fence.InvalidError{Field: "transaction or function", Reason: "is nil"}
