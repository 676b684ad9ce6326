package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
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
	var unknown *fence.UnknownError
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
		status, askErr := askOutcome(ctx, db, unknown)
		switch {
		case ended(askErr):
			return fmt.Errorf("%w (its outcome was not found: %w)", err, askErr)
		case askErr != nil, status == "in progress":
			wait.Reset(pause)
		case status == "committed":
			return nil
		case status == "aborted":
			return fmt.Errorf("%w: %w", fence.ErrNotCommitted, unknown.Err)
		default:
			return err
		}
	}
}

// askOutcome asks once, in a transaction whose COMMIT waits for the standbys too.
func askOutcome(ctx context.Context, db Beginner, unknown *fence.UnknownError) (status string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }() // nothing to do after Commit
	if err := tx.QueryRowContext(ctx, sqlOutcome, unknown.XID, unknown.Run).Scan(&status); err != nil {
		return "", err
	}
	return status, tx.Commit()
}
