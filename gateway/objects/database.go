package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
)

// Database runs the statements on the schema objects, each a transaction of its
// own. Safe for concurrent use.
type Database struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of one statement, waiting for a connection included
	changes func(context.Context) (context.Context, error)
	judged  bool          // its statements write under a grant
	fresh   chan struct{} // holds one for each connection beside the pool's
}

// NewDatabase runs statements on a pool that is logged in as a member of
// fence_gateway. The timeout is of one statement. Default 30s.
func NewDatabase(pool *pgxpool.Pool, timeout time.Duration) Database {
	if timeout <= 0 {
		timeout = statementTimeout
	}
	return Database{pool: pool, timeout: timeout, fresh: make(chan struct{}, pool.Config().MaxConns)}
}

// Changes has f asked before each statement that writes under a grant: the context is what its connection is acquired with,
// an error keeps it from being sent.
func (d Database) Changes(f func(context.Context) (context.Context, error)) Database {
	d.changes = f
	return d
}

// underGrant is for statements that write under a grant.
func (d Database) underGrant() Database {
	d.judged = d.changes != nil
	return d
}

// Querier is a pool or a connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// refused reports whether PostgreSQL itself said no, so that the statement
// certainly changed nothing. An error that ends the session is not such a word:
// it can come between a commit and its acknowledgement.
func refused(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && severity(pgErr) == "ERROR"
}

func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity
}

// transient reports whether a refusal may not come again: a serialization
// failure, a deadlock, a server that starts or stops, or a migration that changed
// what the statement returns while it ran.
func transient(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pgErr.Code, "40") || strings.HasPrefix(pgErr.Code, "53") || strings.HasPrefix(pgErr.Code, "57P") || redefined(pgErr))
}

// redefined is by the function of PostgreSQL that refuses: the SQLSTATEs, 42804 and 0A000, stand for much else.
func redefined(err *pgconn.PgError) bool {
	return err.Routine == "tupledesc_match" || err.Routine == "RevalidateCachedQuery"
}

// Once runs a statement that changes nothing, or whose effect nobody relies on.
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
	settlePause = 50 * time.Millisecond // doubles with each try
)

// Settle runs a statement that can be repeated, until its outcome is known: a
// lost acknowledgement is followed by the same statement on a fresh connection,
// which locks the rows that the first try may still be changing, and answers
// with what that one did. An outcome that stays unknown is an [*unknownError].
//
// Connections beside the pool's are at most as many as the pool's, so that a
// PostgreSQL in trouble is not asked for one by each request.
func (d Database) Settle(ctx context.Context, f func(context.Context, Querier) error) error {
	return d.settle(ctx, d.try(ctx, false, f), f)
}

// settle is Settle after a first try.
func (d Database) settle(ctx context.Context, err error, f func(context.Context, Querier) error) error {
	lost := false
	pause := settlePause
	for try := 1; err != nil; try++ {
		certain := refused(err) && !transient(err)
		lost = lost || !refused(err) && !pgconn.SafeToRetry(err)
		if certain {
			err = translate(err)
			if _, fenced := fence.CodeOf(err); fenced {
				return err // a try that is still on its way will be refused, too: tokens only rise
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

// unknownError: a statement was sent, and nobody knows what became of it.
type unknownError struct{ cause error } // what the last try said

func (e *unknownError) Error() string        { return "outcome is unknown: " + e.cause.Error() }
func (e *unknownError) Unwrap() error        { return e.cause }
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

// connect makes a connection beside the pool's, with the pool's hooks.
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

// errReplaced: a new connection is of no use by now.
var errReplaced = errors.New("the connection reaches another PostgreSQL server than the pool's other connections, or was made before that was checked")

// notSent marks an error from before the statement was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error     { return e.error }
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

// UUID is an id as a statement's argument, in any of pgx's modes.
func UUID(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// noRows replaces the error of a query that found nothing.
func noRows(err, instead error) error {
	if err == pgx.ErrNoRows { //nolint:errorlint // Once returns it bare
		return instead
	}
	return err
}

const statementTimeout = 30 * time.Second

// Interval is a duration as a statement's argument.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// given is nil for an empty text.
func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
