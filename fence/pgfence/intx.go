package pgfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
)

// ErrTxEnded says that the function given to [InTx] ended the transaction
// itself, so InTx can't answer for it: what was written before may be committed.
var ErrTxEnded = errors.New("the function given to InTx ended its transaction; InTx does that")

// rollbackPatience bounds the clean-up after a failure.
const rollbackPatience = 5 * time.Second

// Beginner is where [InTx] begins: a *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn.
// A pgx.Tx has the method too, and is refused: InTx could not commit in it.
type Beginner interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

var (
	_ Beginner = (*pgxpool.Pool)(nil)
	_ Beginner = (*pgxpool.Conn)(nil)
	_ Beginner = (*pgx.Conn)(nil)
)

// InTx runs fn in a transaction under a grant and commits it. Beginning and
// presenting the grant take one round trip. fn must use the transaction that it
// is given, must not end it, and may be run again by the caller after an error
// that says so.
//
// The outcomes: nil, committed. An error that is [fence.ErrUnknown]: the
// connection was lost during COMMIT. [ErrTxEnded]: fn ended the transaction, so
// what it wrote may be committed. Any other error, fn's included: nothing was
// written; fence.ErrStale and the other refusals say so for the fence. A
// panic of fn rolls back and goes on.
func InTx(ctx context.Context, db Beginner, grant fence.Grant, fn func(pgx.Tx) error) error {
	return InTxWith(ctx, db, pgx.TxOptions{}, grant, fn)
}

// InTxWith is [InTx] with the transaction's modes, such as its isolation level.
// opts.CommitQuery is not used.
func InTxWith(ctx context.Context, db Beginner, opts pgx.TxOptions, grant fence.Grant, fn func(pgx.Tx) error) error {
	if err := grant.Validate(); err != nil {
		return err
	}
	opts.CommitQuery = sqlCommit
	tx, err := begin(ctx, db, opts, grant)
	if err != nil {
		return fmt.Errorf("begin under %s: %w", grant, Translate(err))
	}
	done := false
	defer func() {
		if !done { // fn failed, panicked or ended the goroutine
			rollback(ctx, tx)
		}
	}()

	lent := &lentTx{Tx: tx}
	if err := fn(lent); err != nil {
		if conn := tx.Conn().PgConn(); !lent.ended && !conn.IsClosed() && conn.TxStatus() == 'I' {
			return fmt.Errorf("transaction under %s: %w: %w", grant, ErrTxEnded, Translate(err)) // by SQL, and perhaps committed
		}
		return Translate(err)
	}
	if lent.ended {
		return fmt.Errorf("transaction under %s: %w", grant, ErrTxEnded)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("transaction under %s: %w", grant, err)
	}
	switch conn := tx.Conn().PgConn(); {
	case conn.IsClosed():
		return fmt.Errorf("transaction under %s: %w", grant, pgconn.ErrConnClosed)
	case conn.IsBusy():
		return fmt.Errorf("transaction under %s: the function given to InTx left rows open", grant)
	case conn.TxStatus() == 'I':
		return fmt.Errorf("transaction under %s: %w", grant, ErrTxEnded)
	case conn.TxStatus() == 'E':
		return fmt.Errorf("transaction under %s: a statement in it had failed: %w", grant, pgx.ErrTxCommitRollback)
	}
	done = true
	return commit(ctx, tx, grant)
}

// begin sends BEGIN and the grant together. Where the driver was told to put
// arguments into the statement's text, the grant goes by itself, as a parameter.
func begin(ctx context.Context, db Beginner, opts pgx.TxOptions, grant fence.Grant) (pgx.Tx, error) {
	alone := sendsLiterals(db)
	batch := &pgx.Batch{}
	batch.BeginTx(opts)
	if !alone {
		batch.Queue(sqlUseMarked, grant.Resource, grant.Presented())
	}
	results := db.SendBatch(ctx, batch)
	err := results.Close()
	tx := results.Tx()
	switch {
	case err != nil:
	case tx == nil:
		return nil, errors.New("pgfence: this Beginner can't begin a transaction in a batch")
	case alone:
		_, err = tx.Exec(ctx, sqlUseMarked, pgx.QueryExecModeExec, grant.Resource, grant.Presented())
	}
	if err != nil {
		if tx != nil {
			rollback(ctx, tx)
		}
		return nil, err
	}
	return tx, nil
}

func sendsLiterals(db Beginner) bool {
	var config *pgx.ConnConfig
	switch d := db.(type) {
	case *pgxpool.Pool:
		config = d.Config().ConnConfig
	case *pgxpool.Conn:
		config = d.Conn().Config()
	case *pgx.Conn:
		config = d.Config()
	}
	return config != nil && config.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
}

// commit asks PostgreSQL to commit and says what became of it. pgconn.SafeToRetry
// is of no use here: the driver may report a connection that it lost while it
// read the answer as "conn closed", which it calls safe to retry.
func commit(ctx context.Context, tx pgx.Tx, grant fence.Grant) error {
	err := tx.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case ended(err) && errors.As(err, &pg) && strings.Contains(pg.Message, txEnded):
		return fmt.Errorf("transaction under %s: %w", grant, ErrTxEnded)
	case ended(err), errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("commit under %s: %w", grant, Translate(err))
	}
	return fmt.Errorf("commit under %s: %w: %w", grant, fence.ErrUnknown, err)
}

// rollback works on after the caller's context has ended.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	_ = tx.Rollback(ctx) // on failure the driver closes the connection, which rolls back too
}

// lentTx is the transaction that fn works in. Ending it is InTx's business.
type lentTx struct {
	pgx.Tx
	ended bool
}

// Commit refuses, and makes InTx fail.
func (t *lentTx) Commit(context.Context) error {
	t.ended = true
	return ErrTxEnded
}

// Rollback rolls back, and makes InTx fail.
func (t *lentTx) Rollback(ctx context.Context) error {
	t.ended = true
	return t.Tx.Rollback(ctx)
}
