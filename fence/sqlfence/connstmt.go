package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
)

// stmt is a prepared statement of a [conn].
type stmt struct {
	conn  *conn
	inner driver.Stmt
	query string
}

var (
	_ driver.StmtExecContext   = (*stmt)(nil)
	_ driver.StmtQueryContext  = (*stmt)(nil)
	_ driver.NamedValueChecker = (*stmt)(nil)
)

// ExecContext runs the statement: in the open transaction, or in one of its own if ctx
// has grants.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.exec(ctx, s.query, func() (driver.Result, error) { return execPrepared(ctx, s.inner, args) })
}

// QueryContext is like ExecContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.query(ctx, s.query, func() (driver.Rows, error) { return queryPrepared(ctx, s.inner, args) })
}

// CheckNamedValue forwards to the driver's statement, or else to its connection.
func (s *stmt) CheckNamedValue(v *driver.NamedValue) error {
	if inner, ok := s.inner.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(v)
	}
	return s.conn.CheckNamedValue(v)
}

// NumInput forwards to the driver's statement.
func (s *stmt) NumInput() int { return s.inner.NumInput() }

// Close closes the driver's statement.
func (s *stmt) Close() error { return s.inner.Close() }

// Exec is never called, because there is ExecContext.
func (s *stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errNoContext }

// Query is never called, because there is QueryContext.
func (s *stmt) Query([]driver.Value) (driver.Rows, error) { return nil, errNoContext }

var errNoContext = errors.New("sqlfence: call the method that takes a context")

// These functions call a driver as database/sql does: by the method with a context, or else by the one without.

func begin(ctx context.Context, c driver.Conn, opts driver.TxOptions) (driver.Tx, error) {
	if inner, ok := c.(driver.ConnBeginTx); ok {
		return inner.BeginTx(ctx, opts)
	}
	if opts != (driver.TxOptions{}) {
		return nil, errors.New("sqlfence: the driver supports neither isolation levels nor read-only transactions")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.Begin() //nolint:staticcheck // what the driver has
}

func prepare(ctx context.Context, c driver.Conn, query string) (driver.Stmt, error) {
	if inner, ok := c.(driver.ConnPrepareContext); ok {
		return inner.PrepareContext(ctx, query)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.Prepare(query)
}

func execPrepared(ctx context.Context, s driver.Stmt, args []driver.NamedValue) (driver.Result, error) {
	if inner, ok := s.(driver.StmtExecContext); ok {
		return inner.ExecContext(ctx, args)
	}
	values, err := values(ctx, args)
	if err != nil {
		return nil, err
	}
	return s.Exec(values) //nolint:staticcheck // what the driver has
}

func queryPrepared(ctx context.Context, s driver.Stmt, args []driver.NamedValue) (driver.Rows, error) {
	if inner, ok := s.(driver.StmtQueryContext); ok {
		return inner.QueryContext(ctx, args)
	}
	values, err := values(ctx, args)
	if err != nil {
		return nil, err
	}
	return s.Query(values) //nolint:staticcheck // what the driver has
}

func values(ctx context.Context, args []driver.NamedValue) ([]driver.Value, error) {
	values := make([]driver.Value, len(args))
	for i, arg := range args {
		if arg.Name != "" {
			return nil, errors.New("sqlfence: the driver does not support named parameters")
		}
		values[i] = arg.Value
	}
	return values, ctx.Err()
}
