package pgfence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Use presents grants for the rest of a transaction and checks them at once. It is for programs that begin and commit
// themselves. The grants replace those presented before. An error is one of the fence's refusals, see [Translate],
// and fails the transaction. From here to its end, the grants cover everything that the transaction writes; a guarded
// table uses the one that it needs.
//
// After ROLLBACK TO a savepoint from before Use, present them again. An error of the caller's own COMMIT may mean that it
// is committed: it is not [fence.ErrUnknown], and [Outcome] can't resolve it.
func Use(ctx context.Context, tx pgx.Tx, grants ...fence.Grant) error {
	if err := core.ValidateGrants(grants); err != nil {
		return err
	}
	if tx == nil {
		return errNoTx
	}
	sql, args := core.Using(grants, core.SQLUse, core.SQLUseMany)
	// Never the simple protocol: it would put the seals into the statement's text.
	if _, err := tx.Exec(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...); err != nil {
		return fmt.Errorf("use %s: %w", core.GrantNames(grants), Translate(err))
	}
	return nil
}

// Check asks whether the grants that the transaction presents are still the recorded ones, before its next guarded
// write. An error is one of the fence's refusals, and fails the transaction.
func Check(ctx context.Context, tx pgx.Tx) error {
	if tx == nil {
		return errNoTx
	}
	if _, err := tx.Exec(ctx, core.SQLCheck); err != nil {
		return fmt.Errorf("check the grant: %w", Translate(err))
	}
	return nil
}

var errNoTx = &fence.InvalidError{Field: "transaction", Reason: "is nil"}
