package pgfence

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// ErrNotCommitted is [fence.ErrNotCommitted].
var ErrNotCommitted = fence.ErrNotCommitted

// UnknownError is [InTx]'s error if COMMIT was not answered, or its wait for a synchronous standby was cancelled.
type UnknownError = fence.UnknownError

// Outcome finds out what happened to a transaction whose COMMIT was not answered; err is the error of [InTx]. It asks
// until ctx ends, also while PostgreSQL restarts and while the transaction still runs. The outcomes:
//   - nil: committed, also on the synchronous standbys if there are any.
//   - [ErrNotCommitted]: rolled back.
//   - an error that is [fence.ErrUnknown]: the outcome can't be determined, or ctx ended first. This happens after a
//     failover or a restore, and after a crash if the transaction's ID is committed: the ID may have been reused.
//
// db should be a pool: the connection that was lost is closed, and a closed connection or pool is asked once only.
//
// An error that is not an [*UnknownError], including nil, is returned unchanged.
func Outcome(ctx context.Context, db Beginner, err error) error {
	return core.Outcome(ctx, err, func(ctx context.Context, unknown *UnknownError) (string, error) {
		status, err := ask(ctx, db, unknown)
		if err != nil && closed(db, err) {
			err = fmt.Errorf("%w: %w", core.ErrClosed, err)
		}
		return status, err
	}, func(err error) bool { return ended(err) || errors.Is(err, ErrNoticesUnavailable) })
}

// closed reports whether db, which failed with err, can never answer again.
func closed(db Beginner, err error) bool {
	switch d := db.(type) {
	case *pgx.Conn:
		return d.IsClosed()
	case *pgxpool.Conn:
		return d.Conn().IsClosed()
	}
	return strings.Contains(err.Error(), "closed pool") // the text of puddle's ErrClosedPool, which pgxpool does not export
}

// ask asks once, in a transaction whose COMMIT also waits for the standbys.
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
		return "in progress", nil // the wait was cancelled again: ask once more
	}
	return status, nil
}
