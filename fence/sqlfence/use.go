package sqlfence

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Tx is a transaction in which a grant is presented: a *sql.Tx, or what an
// object mapper wraps around one, or a *sql.Conn on which BEGIN was sent.
type Tx interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

var (
	_ Tx = (*sql.Tx)(nil)
	_ Tx = (*sql.Conn)(nil)
)

// Use presents grants for the rest of a transaction and checks them at once: for
// programs, and object mappers, that begin and commit themselves. They replace
// whatever was presented before. An error is one of the fence's refusals, see
// [Translate], and fails the transaction. From here to the end of the
// transaction, whatever it writes is covered by the grants; a guarded table
// picks the one that it needs.
//
// After ROLLBACK TO a savepoint from before Use, present them again.
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
	// Prepared, because a driver may be told to write arguments into the statement's text, where a seal must not be.
	stmt, err := tx.PrepareContext(ctx, query)
	if err != nil {
		return fmt.Errorf("use %s: %w", core.Named(grants), Translate(err))
	}
	defer func() { _ = stmt.Close() }() // on failure the transaction fails by itself
	if _, err := stmt.ExecContext(ctx, args...); err != nil {
		return fmt.Errorf("use %s: %w", core.Named(grants), Translate(err))
	}
	return nil
}

// listOf carries grants in one argument: drivers differ in how they send arrays.
func listOf(grants []fence.Grant) string {
	type pair struct {
		R string `json:"r"`
		K string `json:"k"`
	}
	list := make([]pair, len(grants))
	for i, g := range grants {
		list[i] = pair{R: g.Resource, K: g.Presented()}
	}
	text, _ := json.Marshal(list) // strings can't fail
	return string(text)
}

// Check asks now whether the grants that the transaction presents are still the
// recorded ones, instead of at its next guarded write. An error is one of the
// fence's refusals, and fails the transaction.
func Check(ctx context.Context, tx Tx) error {
	if tx == nil {
		return errNoTx
	}
	if _, err := tx.ExecContext(ctx, core.SQLCheck); err != nil {
		return fmt.Errorf("check the grant: %w", Translate(err))
	}
	return nil
}

// Savepoint runs fn inside a savepoint of the transaction. Where fn fails or
// panics, what it did is rolled back and the transaction can go on; its error
// comes back. Savepoints nest.
func Savepoint(ctx context.Context, tx Tx, fn func() error) error {
	if tx == nil || fn == nil {
		return errNoTx
	}
	const name = "fencegate" // the latest one of a name is meant, so they nest
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+name); err != nil {
		return fmt.Errorf("savepoint: %w", Translate(err))
	}
	done := false
	defer func() {
		if !done { // fn panicked or ended the goroutine
			_, _ = tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO "+name)
		}
	}()
	err := fn()
	done = true
	if err != nil {
		_, rollbackErr := tx.ExecContext(ctx, "ROLLBACK TO "+name)
		if rollbackErr == nil {
			_, rollbackErr = tx.ExecContext(ctx, "RELEASE "+name)
		}
		return errors.Join(Translate(err), rollbackErr)
	}
	if _, err := tx.ExecContext(ctx, "RELEASE "+name); err != nil {
		return fmt.Errorf("release savepoint: %w", Translate(err))
	}
	return nil
}

var errNoTx = &fence.InvalidError{Field: "transaction or function", Reason: "is nil"}
