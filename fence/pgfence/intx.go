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
	"github.com/fencegate/fencegate/fence/internal/core"
)

// ErrTxEnded says that the function given to [InTx] ended the transaction itself, so InTx does not know the outcome:
// what was written before may be committed. InTx does not notice it if the function then begins another transaction by
// SQL, and that one is in a failed state at the end: the error is then the function's.
var ErrTxEnded = core.ErrTxEnded

// rollbackPatience bounds the clean-up after a failure.
const rollbackPatience = 5 * time.Second

// Beginner begins the transaction of [InTx]: a *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn. A pgx.Tx has the method
// too, but is refused: InTx could not commit in it.
type Beginner interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

var (
	_ Beginner = (*pgxpool.Pool)(nil)
	_ Beginner = (*pgxpool.Conn)(nil)
	_ Beginner = (*pgx.Conn)(nil)
)

// TxOptions are choices for [InTxAll].
type TxOptions struct {
	pgx.TxOptions // modes, such as the isolation level; CommitQuery is not used

	// Resolve is how long to ask for the outcome of an unanswered COMMIT, as [Outcome] does, even if the caller's
	// context has ended. Default: 0, don't ask. It needs a db that provides another connection: a *pgxpool.Pool.
	Resolve time.Duration
}

// InTx runs fn in a transaction under a grant and commits it. BEGIN and presenting the grant take one round trip, and
// COMMIT another, as many as without a grant; [ExecBatch] needs one in total. fn must use the given transaction and
// must not end it. fn may run more than once, because the caller may retry after an error that permits it.
//
// The outcomes: nil, committed. An [*UnknownError], which is [fence.ErrUnknown]: the connection was lost during
// COMMIT, or the commit did not reach the synchronous standby; [Outcome] resolves it. [ErrTxEnded]: fn ended the
// transaction, so what it wrote may be committed. Any other error, also fn's: nothing was written; fence.ErrStale and
// the other refusals come from the fence. A panic of fn rolls back and continues.
func InTx(ctx context.Context, db Beginner, grant fence.Grant, fn func(pgx.Tx) error) error {
	return InTxAll(ctx, db, TxOptions{}, []fence.Grant{grant}, fn)
}

// InTxWith is [InTx] with the transaction's modes, such as its isolation level.
// opts.CommitQuery is not used.
func InTxWith(ctx context.Context, db Beginner, opts pgx.TxOptions, grant fence.Grant, fn func(pgx.Tx) error) error {
	return InTxAll(ctx, db, TxOptions{TxOptions: opts}, []fence.Grant{grant}, fn)
}

// InTxAll is [InTx] under several grants. A guarded table uses the one that it needs. Each must be current. Their
// order does not matter.
func InTxAll(ctx context.Context, db Beginner, opts TxOptions, grants []fence.Grant, fn func(pgx.Tx) error) error {
	err := inTx(ctx, db, opts.TxOptions, grants, fn)
	if pool, ok := db.(*pgxpool.Pool); ok {
		return core.Resolved(ctx, opts.Resolve, err, func(ctx context.Context, err error) error { return Outcome(ctx, pool, err) })
	}
	return err
}

func inTx(ctx context.Context, db Beginner, opts pgx.TxOptions, grants []fence.Grant, fn func(pgx.Tx) error) error {
	if err := core.ValidateGrants(grants); err != nil {
		return err
	}
	if db == nil || fn == nil {
		return &fence.InvalidError{Field: "database or function", Reason: "is nil"}
	}
	opts.CommitQuery = core.SQLCommit
	tx, mark, err := begin(ctx, db, opts, grants)
	if err != nil {
		return fmt.Errorf("begin under %s: %w", core.GrantNames(grants), Translate(err))
	}
	done := false
	defer func() {
		if !done { // fn failed, panicked or called Goexit
			rollback(ctx, tx)
		}
	}()

	lent := &lentTx{Tx: tx}
	if err := fn(lent); err != nil {
		if !lent.ended && endedBySQL(ctx, tx) {
			return fmt.Errorf("transaction under %s: %w: %w", core.GrantNames(grants), ErrTxEnded, Translate(err)) // perhaps committed
		}
		return Translate(err)
	}
	if err := committable(ctx, lent); err != nil {
		return fmt.Errorf("transaction under %s: %w", core.GrantNames(grants), err)
	}
	done = true
	return commit(ctx, tx, mark, grants)
}

// endedBySQL reports whether fn, which failed, is known to have ended the transaction by SQL. Nothing can be asked in
// a transaction that has failed, on a busy connection, or on a closed one.
func endedBySQL(ctx context.Context, tx pgx.Tx) bool {
	switch conn := tx.Conn().PgConn(); {
	case conn.IsClosed(), conn.IsBusy():
		return false
	case conn.TxStatus() != 'T':
		return conn.TxStatus() == 'I'
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	_, err := tx.Conn().Exec(ctx, core.SQLStillIn)
	return saysTxEnded(err)
}

// saysTxEnded reports whether SQLStillIn ran in another transaction than the one that InTx began.
func saysTxEnded(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.Contains(pg.Message, core.TxEnded)
}

// committable says why a transaction can't be committed although fn succeeded.
func committable(ctx context.Context, tx *lentTx) error {
	if tx.ended {
		return ErrTxEnded
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	switch conn := tx.Conn().PgConn(); {
	case conn.IsClosed():
		return pgconn.ErrConnClosed
	case conn.IsBusy():
		return errors.New("the function given to InTx left rows open")
	case conn.TxStatus() == 'I':
		return ErrTxEnded
	case conn.TxStatus() == 'E':
		return fmt.Errorf("a statement in it had failed: %w", pgx.ErrTxCommitRollback)
	}
	return nil
}

// mark identifies a transaction, to resolve an unanswered COMMIT.
type mark struct {
	waits    bool // for a synchronous standby
	xid, run *string
}

func (m *mark) scan(row pgx.Row) error { return row.Scan(nil, nil, &m.waits, &m.xid, &m.run) }

// unknown is the error of this transaction's unanswered COMMIT.
func (m *mark) unknown(err error) error {
	e := &UnknownError{Err: err}
	if m.xid != nil && m.run != nil {
		e.XID, e.Run = *m.xid, *m.run
	}
	return e
}

// begin sends BEGIN and the grants together. With the simple protocol, which writes arguments into the statement's
// text, the grants are sent separately, as parameters.
func begin(ctx context.Context, db Beginner, opts pgx.TxOptions, grants []fence.Grant) (tx pgx.Tx, m mark, err error) {
	alone := sendsLiterals(db)
	sql, args := core.Using(grants, core.SQLUseWithID, core.SQLUseManyWithID)
	batch := &pgx.Batch{}
	batch.BeginTx(opts)
	if !alone {
		batch.Queue(sql, args...).QueryRow(m.scan)
	}
	results := db.SendBatch(ctx, batch)
	err = results.Close()
	tx = results.Tx()
	switch {
	case err != nil:
	case tx == nil:
		return nil, m, errors.New("pgfence: this Beginner can't begin a transaction in a batch")
	case alone:
		err = m.scan(tx.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...))
	}
	if err == nil && m.waits && !watchWarnings(tx.Conn().PgConn()).watching() {
		err = ErrNoticesUnavailable
	}
	if err != nil {
		if tx != nil {
			rollback(ctx, tx)
		}
		return nil, m, err
	}
	return tx, m, nil
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

// commit commits and returns the outcome. pgconn.SafeToRetry is no help here: if the driver loses the connection
// while it reads the answer, it may report "conn closed", which it considers safe to retry.
func commit(ctx context.Context, tx pgx.Tx, m mark, grants []fence.Grant) error {
	warnings := watchWarnings(tx.Conn().PgConn())
	err := tx.Commit(ctx)
	switch {
	case err == nil:
		if !warnings.warned() {
			return nil
		}
		err = ErrUnreplicated
	case ended(err) && saysTxEnded(err):
		return fmt.Errorf("transaction under %s: %w", core.GrantNames(grants), ErrTxEnded)
	case ended(err), errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("commit under %s: %w", core.GrantNames(grants), Translate(err))
	}
	return fmt.Errorf("commit under %s: %w", core.GrantNames(grants), m.unknown(err))
}

// rollback runs even if the caller's context has ended.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	_ = tx.Rollback(ctx) // on failure the driver closes the connection, which rolls back too
}

// lentTx is the transaction that fn uses. Only InTx may end it.
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
