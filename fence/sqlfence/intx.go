package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// ErrTxEnded says that the function given to [InTx] ended the transaction itself, so InTx does not know the outcome:
// what was written before may be committed. InTx does not notice it if the function then begins another transaction by
// SQL, and that one is in a failed state at the end: the error is then the function's.
//
// If the context of InTx ends while the function runs, database/sql rolls the transaction back. InTx can't distinguish
// that from an end by the function: the error is then ErrTxEnded joined with the context's error. If the function never
// ends its transaction, nothing was written.
var ErrTxEnded = core.ErrTxEnded

// Beginner begins the transaction of [InTx]: a *sql.DB or *sql.Conn.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

var (
	_ Beginner = (*sql.DB)(nil)
	_ Beginner = (*sql.Conn)(nil)
)

// TxOptions are choices for [InTxAll].
type TxOptions struct {
	sql.TxOptions // modes, such as the isolation level

	// Resolve is how long to ask for the outcome of an unanswered COMMIT, as [Outcome] does, even if the caller's
	// context has ended. Default: 0, don't ask. It needs a db that provides another connection: a *sql.DB.
	Resolve time.Duration
}

// InTx runs fn in a transaction under a grant and commits it. fn must use the given transaction and must not end it.
// fn may run more than once, because the caller may retry after an error that permits it.
//
// The outcomes: nil, committed. A [*fence.UnknownError], which is [fence.ErrUnknown]: the connection was lost during
// COMMIT; [Outcome] resolves it. [ErrTxEnded]: fn ended the transaction, so what it wrote may be committed. Any other
// error, also fn's: nothing was written; fence.ErrStale and the other refusals come from the fence. A panic of fn
// rolls back and continues.
func InTx(ctx context.Context, db Beginner, grant fence.Grant, fn func(*sql.Tx) error) error {
	return InTxAll(ctx, db, TxOptions{}, []fence.Grant{grant}, fn)
}

// InTxAll is [InTx] with options and under several grants. A guarded table uses the one that it needs. Each must be
// current. Their order does not matter.
func InTxAll(ctx context.Context, db Beginner, opts TxOptions, grants []fence.Grant, fn func(*sql.Tx) error) error {
	err := inTx(ctx, db, &opts.TxOptions, grants, fn)
	if pool, ok := db.(*sql.DB); ok {
		return core.Resolved(ctx, opts.Resolve, err, func(ctx context.Context, err error) error { return Outcome(ctx, pool, err) })
	}
	return err
}

func inTx(ctx context.Context, db Beginner, opts *sql.TxOptions, grants []fence.Grant, fn func(*sql.Tx) error) error {
	if err := core.ValidateGrants(grants); err != nil {
		return err
	}
	if db == nil || fn == nil {
		return &fence.InvalidError{Field: "database or function", Reason: "is nil"}
	}
	if err := core.Agree(ctx, grants); err != nil {
		return err
	}
	// Otherwise a transaction of pgxsql would refuse statements of fn whose context carries these grants.
	tx, err := db.BeginTx(WithGrant(ctx, grants...), opts)
	if err != nil {
		return fmt.Errorf("begin under %s: %w", core.GrantNames(grants), err)
	}
	done := false
	defer func() {
		if !done { // an error, or fn panicked or called Goexit
			_ = tx.Rollback() // on failure the driver closes the connection, which rolls back too
		}
	}()
	if err := Use(ctx, tx, grants...); err != nil {
		return err
	}
	fnErr := fn(tx)
	unknown, err := mark(ctx, tx)
	switch {
	case errors.Is(err, ErrTxEnded):
		return fmt.Errorf("transaction under %s: %w", core.GrantNames(grants), errors.Join(err, Translate(fnErr)))
	case fnErr != nil:
		return Translate(fnErr)
	case err != nil:
		return fmt.Errorf("transaction under %s: %w", core.GrantNames(grants), Translate(err))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("transaction under %s: %w", core.GrantNames(grants), err)
	}
	done = true
	if err := tx.Commit(); ended(err) {
		return fmt.Errorf("commit under %s: %w", core.GrantNames(grants), Translate(err))
	} else if err != nil {
		unknown.Err = err
		return fmt.Errorf("commit under %s: %w", core.GrantNames(grants), unknown)
	}
	return nil
}

// mark reads, before COMMIT, the transaction's ID, which resolves an unanswered COMMIT. It fails if the transaction
// has failed, and with [ErrTxEnded] if it has ended.
func mark(ctx context.Context, tx *sql.Tx) (*fence.UnknownError, error) {
	var same bool
	var unknown fence.UnknownError
	err := ctx.Err()
	if err == nil {
		err = tx.QueryRowContext(ctx, core.SQLName).Scan(&same, &unknown.XID, &unknown.Run)
	}
	if err != nil && ctx.Err() != nil { // the context's error hides whether fn ended the transaction
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), markPatience)
		defer cancel()
		err = errors.Join(ctx.Err(), tx.QueryRowContext(detached, core.SQLName).Scan(&same, &unknown.XID, &unknown.Run))
	}
	if errors.Is(err, sql.ErrTxDone) || err != nil && strings.Contains(err.Error(), core.TxEnded) {
		return nil, errors.Join(ErrTxEnded, ctx.Err())
	}
	return &unknown, err
}

// markPatience bounds the check of a transaction whose context has ended.
const markPatience = 5 * time.Second
