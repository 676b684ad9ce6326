package pgfence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
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
	var unknown *UnknownError
	if !errors.As(err, &unknown) || unknown.XID == "" {
		return err
	}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (its outcome was not found: %w)", err, ctx.Err())
		case <-wait.C:
		}
		status, askErr := ask(ctx, db, unknown)
		switch {
		case askErr != nil && ended(askErr), errors.Is(askErr, ErrDeaf):
			return fmt.Errorf("%w (its outcome was not found: %w)", err, askErr)
		case askErr != nil, status == "in progress":
			wait.Reset(pause)
		case status == "committed":
			return nil
		case status == "aborted":
			return fmt.Errorf("%w: %w", ErrNotCommitted, unknown.Err)
		default:
			return err
		}
	}
}

// ask asks once, in a transaction whose COMMIT waits for the standbys too.
func ask(ctx context.Context, db Beginner, unknown *UnknownError) (status string, err error) {
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	var waits bool
	batch.Queue(sqlOutcome+`, `+waiting, unknown.XID, unknown.Run).QueryRow(func(row pgx.Row) error { return row.Scan(&status, &waits) })
	results := db.SendBatch(ctx, batch)
	err = results.Close()
	tx := results.Tx()
	if err != nil || tx == nil {
		if tx != nil {
			rollback(ctx, tx)
		}
		return "", err
	}
	heard := hear(tx.Conn().PgConn())
	if waits && heard.ear == nil {
		rollback(ctx, tx)
		return "", ErrDeaf
	}
	if err := tx.Commit(ctx); err != nil {
		return "", err
	}
	if heard.warned() {
		return "in progress", nil // cancelled again: wait once more
	}
	return status, nil
}
