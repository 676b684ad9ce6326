package pgfence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// Use presents a grant for the rest of a transaction and checks it at once: for
// programs that begin and commit themselves. An error is one of the fence's
// refusals, see [Translate], and fails the transaction. From here to the end of
// the transaction, whatever it writes is covered by the grant.
//
// After ROLLBACK TO a savepoint from before Use, present the grant again.
func Use(ctx context.Context, tx pgx.Tx, grant fence.Grant) error {
	if err := grant.Validate(); err != nil {
		return err
	}
	// Never the simple protocol: it would put the seal into the statement's text.
	if _, err := tx.Exec(ctx, sqlUse, pgx.QueryExecModeExec, grant.Resource, grant.Presented()); err != nil {
		return fmt.Errorf("use %s: %w", grant, Translate(err))
	}
	return nil
}

// Check asks now whether the grant that the transaction presents is still the
// recorded one, instead of at its next guarded write. An error is one of the
// fence's refusals, and fails the transaction.
func Check(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, sqlCheck); err != nil {
		return fmt.Errorf("check the grant: %w", Translate(err))
	}
	return nil
}
