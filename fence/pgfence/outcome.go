package pgfence

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// ErrNotCommitted is [fence.ErrNotCommitted].
var ErrNotCommitted = fence.ErrNotCommitted

// UnknownError is [InTx]'s error where COMMIT was not answered, or was answered
// without what makes it last.
type UnknownError = fence.UnknownError

// Outcome finds out what became of the transaction whose COMMIT was not
// answered: err is what [InTx] returned. It asks, until ctx ends, also while
// PostgreSQL restarts and while the transaction still runs. The outcomes:
//   - nil: it is committed, also on the synchronous standbys where there are any.
//   - [ErrNotCommitted]: it was rolled back.
//   - an error that is [fence.ErrUnknown]: nobody can tell any more, or ctx ended before anybody could. So it is after a
//     failover or a restore, and after a crash where the transaction's number was committed: that may have been a later one.
//
// An error that is no [*UnknownError], nil included, comes back as it is.
func Outcome(ctx context.Context, db Beginner, err error) error {
	return core.Outcome(ctx, err, func(ctx context.Context, unknown *UnknownError) (string, error) { return ask(ctx, db, unknown) },
		func(err error) bool { return ended(err) || errors.Is(err, ErrNoticesUnavailable) })
}

// ask asks once, in a transaction whose COMMIT waits for the standbys too.
func ask(ctx context.Context, db Beginner, unknown *UnknownError) (status string, err error) {
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	var waits bool
	batch.Queue(core.SQLOutcome+`, `+core.Waits, unknown.XID, unknown.Run).QueryRow(func(row pgx.Row) error { return row.Scan(&status, &waits) })
	results := db.SendBatch(ctx, batch)
	err = results.Close()
	tx := results.Tx()
	if err != nil || tx == nil {
		if tx != nil {
			rollback(ctx, tx)
		}
		return "", err
	}
	warnings := watchWarnings(tx.Conn().PgConn())
	if waits && !warnings.watching() {
		rollback(ctx, tx)
		return "", ErrNoticesUnavailable
	}
	if err := tx.Commit(ctx); err != nil {
		return "", err
	}
	if warnings.warned() {
		return "in progress", nil // cancelled again: wait once more
	}
	return status, nil
}
