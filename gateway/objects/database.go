package objects

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
)

// Database runs statements on the schema objects, each in a transaction of its own. Safe for concurrent use.
type Database struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of one statement, including the wait for a connection
	changes func(context.Context) (context.Context, error)
	judged  bool          // its statements write under a grant
	fresh   chan struct{} // a slot for each connection outside the pool
}

// NewDatabase runs statements on a pool whose login is a member of fence_gateway. timeout bounds one statement. Default
// 30s.
func NewDatabase(pool *pgxpool.Pool, timeout time.Duration) Database {
	if timeout <= 0 {
		timeout = statementTimeout
	}
	return Database{pool: pool, timeout: timeout, fresh: make(chan struct{}, pool.Config().MaxConns)}
}

const statementTimeout = 30 * time.Second

// Changes sets f, which is called before each statement that writes under a grant. The statement's connection is
// acquired with f's context; if f fails, the statement is not sent.
func (d Database) Changes(f func(context.Context) (context.Context, error)) Database {
	d.changes = f
	return d
}

// Within returns the database with another bound of one statement.
func (d Database) Within(timeout time.Duration) Database {
	d.timeout = timeout
	return d
}

// underGrant returns the database for statements that write under a grant.
func (d Database) underGrant() Database {
	d.judged = d.changes != nil
	return d
}

// Querier is a pool or a connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Once runs a statement that changes nothing, or whose effect is not needed.
func (d Database) Once(ctx context.Context, f func(context.Context, Querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err := f(ctx, d.pool)
	switch {
	case err == nil, errors.Is(err, pgx.ErrNoRows):
		return err
	case refused(err) && !transient(err):
		return translate(err)
	}
	if _, ours := errors.AsType[pgx.ScanArgError](err); ours {
		return err
	}
	return away(err)
}

const (
	settleTries = 5
	settlePause = 50 * time.Millisecond // doubles with each attempt
)

// Settle runs a repeatable statement until its outcome is known. After a lost acknowledgement it runs the same
// statement on a fresh connection; that locks the rows that the first attempt may still be changing, and returns the
// first attempt's result. An outcome that stays unknown is an [*unknownError].
//
// There are at most as many connections outside the pool as in it, so that not every request opens one to a PostgreSQL
// in trouble.
func (d Database) Settle(ctx context.Context, f func(context.Context, Querier) error) error {
	return d.settle(ctx, d.try(ctx, false, f), f)
}

// settle is Settle after a first attempt.
func (d Database) settle(ctx context.Context, err error, f func(context.Context, Querier) error) error {
	lost := false
	pause := settlePause
	for try := 1; err != nil; try++ {
		certain := refused(err) && !transient(err)
		lost = lost || inDoubt(err)
		if certain {
			err = translate(err)
			if _, fenced := fence.CodeOf(err); fenced {
				return err // an attempt still in flight will be refused, too: tokens only rise
			}
		} else {
			err = away(err)
		}
		switch {
		case !certain && try < settleTries && ctx.Err() == nil:
		case lost:
			return &unknownError{cause: err}
		default:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause *= 2
		err = d.try(ctx, true, f)
	}
	return nil
}

// unknownError reports that a statement was sent and its outcome is unknown.
type unknownError struct{ cause error } // the last attempt's error

func (e *unknownError) Error() string { return "outcome is unknown: " + e.cause.Error() }

func (e *unknownError) Unwrap() error { return e.cause }

func (e *unknownError) Is(target error) bool { return target == fence.ErrUnknown }

func (d Database) try(ctx context.Context, fresh bool, f func(context.Context, Querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if d.judged {
		may, err := d.changes(ctx)
		if err != nil {
			return notSent{fmt.Errorf("%w: %w", ErrDoubted, err)}
		}
		ctx = may
	}
	if !fresh {
		conn, err := d.pool.Acquire(ctx)
		if err != nil {
			return notSent{err}
		}
		defer conn.Release()
		return f(ctx, conn)
	}
	select {
	case d.fresh <- struct{}{}:
		defer func() { <-d.fresh }()
	case <-ctx.Done():
		return notSent{ctx.Err()}
	}
	conn, err := d.connect(ctx)
	if err != nil {
		return notSent{err}
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(ctx, conn)
}

// connect opens a connection outside the pool, with the pool's hooks.
func (d Database) connect(ctx context.Context) (*pgx.Conn, error) {
	config := d.pool.Config() // a copy
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	if config.AfterConnect != nil {
		err = config.AfterConnect(ctx, conn)
	}
	if err == nil && config.PrepareConn != nil {
		var ok bool
		if ok, err = config.PrepareConn(ctx, conn); err == nil && !ok {
			err = errReplaced
		}
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// errReplaced reports that a new connection is already unusable.
var errReplaced = errors.New("the connection is unusable: its PostgreSQL server differs from the pool's, or is not verified")

// notSent wraps an error from before the statement was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

func (e notSent) SafeToRetry() bool { return true }

// Exec runs a statement without a result.
func Exec(sql string, args ...any) func(context.Context, Querier) error {
	return func(ctx context.Context, q Querier) error {
		rows, err := q.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}
}

// UUID returns an id as a statement's argument, for all of pgx's modes.
func UUID(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// Interval returns a duration as a statement's argument.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// noRows replaces the error of a query that found nothing.
func noRows(err, instead error) error {
	if err == pgx.ErrNoRows { //nolint:errorlint // Once returns it bare
		return instead
	}
	return err
}

// given returns nil for an empty text.
func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
