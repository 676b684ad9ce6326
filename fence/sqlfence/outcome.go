package sqlfence

import (
	"context"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Outcome finds out what became of the transaction whose COMMIT was not
// answered: err is what [InTx] returned. It asks, until ctx ends, also while
// PostgreSQL restarts and while the transaction still runs. The outcomes:
//   - nil: it is committed.
//   - [fence.ErrNotCommitted]: it was rolled back.
//   - an error that is [fence.ErrUnknown]: nobody can tell any more, or ctx ended before anybody could. So it is after a
//     failover or a restore, and after a crash where the transaction's number was committed: that may have been a later one.
//
// An error that is no [*fence.UnknownError], nil included, comes back as it is.
func Outcome(ctx context.Context, db Beginner, err error) error {
	return core.Outcome(ctx, err, func(ctx context.Context, unknown *fence.UnknownError) (string, error) {
		return askOutcome(ctx, db, unknown)
	}, ended)
}

// askOutcome asks once, in a transaction whose COMMIT waits for the standbys too.
func askOutcome(ctx context.Context, db Beginner, unknown *fence.UnknownError) (status string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }() // nothing to do after Commit
	if err := tx.QueryRowContext(ctx, core.SQLOutcome, unknown.XID, unknown.Run).Scan(&status); err != nil {
		return "", err
	}
	return status, tx.Commit()
}
