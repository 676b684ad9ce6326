package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Outcome finds out what happened to a transaction whose COMMIT was not answered; err is the error of [InTx]. It asks
// until ctx ends, also while PostgreSQL restarts and while the transaction still runs. The outcomes:
//   - nil: committed.
//   - [fence.ErrNotCommitted]: rolled back.
//   - an error that is [fence.ErrUnknown]: the outcome can't be determined, or ctx ended first. This happens after a
//     failover or a restore, and after a crash if the transaction's ID is committed: the ID may have been reused.
//
// db should be a pool: the connection that was lost is closed, and a closed connection or pool is asked once only.
//
// An error that is not a [*fence.UnknownError], including nil, is returned unchanged. The grants of ctx are not
// presented.
func Outcome(ctx context.Context, db Beginner, err error) error {
	return core.Outcome(WithGrant(ctx), err, func(ctx context.Context, unknown *fence.UnknownError) (string, error) {
		status, err := askOutcome(ctx, db, unknown)
		if err != nil && closed(err) {
			err = fmt.Errorf("%w: %w", core.ErrClosed, err)
		}
		return status, err
	}, ended)
}

// closed reports whether the error is that of a closed connection or pool. The latter's is known by its text, because
// database/sql does not export it.
func closed(err error) bool {
	return errors.Is(err, sql.ErrConnDone) || err.Error() == "sql: database is closed"
}

// askOutcome asks once, in a transaction whose COMMIT waits for the standbys too.
func askOutcome(ctx context.Context, db Beginner, unknown *fence.UnknownError) (status string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := tx.QueryRowContext(ctx, core.SQLOutcome, unknown.XID, unknown.Run).Scan(&status); err != nil {
		return "", err
	}
	return status, tx.Commit()
}
