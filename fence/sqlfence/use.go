package sqlfence

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

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
		return fmt.Errorf("use %s: %w", core.GrantNames(grants), Translate(err))
	}
	defer func() { _ = stmt.Close() }() // on failure the transaction fails anyway
	if _, err := stmt.ExecContext(ctx, args...); err != nil {
		return fmt.Errorf("use %s: %w", core.GrantNames(grants), Translate(err))
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

var errNoTx = &fence.InvalidError{Field: "transaction", Reason: "is nil"}
