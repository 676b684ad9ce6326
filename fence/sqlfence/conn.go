package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// conn is a driver's connection that presents the grants of contexts.
//
// Grants are presented by fence.use, so they end with the transaction, however it ends. Nothing is set on the
// session, so nothing must be reset before the pool reuses the connection.
type conn struct {
	inner driver.Conn
	using map[string]driver.Stmt // the statements that present grants, by their text
	tx    *tx                    // the open transaction; nil outside of one

	// What a statement's text may have left behind; see [conn.note].
	mayBeOpen bool // a transaction that this wrapper did not begin
	mayBeSet  bool // fence.* settings of the session

	broken bool // must not be reused
}

var (
	_ driver.Conn               = (*conn)(nil)
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.SessionResetter    = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
)

// BeginTx begins a transaction under the grants of ctx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	t, err := c.begin(ctx, opts, presented(ctx), !opts.ReadOnly)
	if err != nil {
		return nil, err // a nil interface, not a nil *tx
	}
	return t, nil
}

// begin begins a transaction under grants. With name it also reads the transaction's ID, which resolves an unanswered
// COMMIT.
func (c *conn) begin(ctx context.Context, opts driver.TxOptions, grants []fence.Grant, name bool) (*tx, error) {
	if len(grants) == 0 {
		inner, err := begin(ctx, c.inner, opts)
		if err != nil {
			return nil, Translate(err)
		}
		c.tx = &tx{conn: c, inner: inner}
		return c.tx, nil
	}
	if err := core.ValidateGrants(grants); err != nil {
		return nil, err
	}
	if err := c.outside(ctx); err != nil {
		return nil, err
	}
	t := &tx{conn: c, grants: grants}
	err := c.beginUnder(ctx, opts, t, name)
	if err != nil {
		return nil, fmt.Errorf("begin under %s: %w", core.Named(grants), Translate(err))
	}
	c.tx = t
	return t, nil
}

// beginUnder begins t and presents its grants, in one round trip if the driver can.
func (c *conn) beginUnder(ctx context.Context, opts driver.TxOptions, t *tx, name bool) error {
	query, args := presenting(t.grants, name)
	if inner, ok := c.inner.(Pipeliner); ok {
		begun, row, err := inner.BeginUnder(ctx, opts, query, args)
		if err == nil {
			t.inner = begun
			return t.named(row, name)
		}
		if !errors.Is(err, driver.ErrSkip) {
			return c.lost(err)
		}
	}
	begun, err := begin(ctx, c.inner, opts)
	if err != nil {
		return err
	}
	t.inner = begun
	row, err := c.use(ctx, query, args)
	if err == nil {
		err = t.named(row, name)
	}
	if err != nil && begun.Rollback() != nil {
		c.broken = true
	}
	return c.lost(err)
}

// presenting chooses the statement that presents grants, and its arguments.
func presenting(grants []fence.Grant, name bool) (query string, args []any) {
	one, list := core.SQLUse, core.SQLUseList
	if name {
		one, list = core.SQLUseKnown, core.SQLUseListKnown
	}
	if len(grants) > 1 {
		return list, []any{listOf(grants)}
	}
	return one, []any{grants[0].Resource, grants[0].Presented()}
}

// use presents grants in the open transaction. The statement stays prepared, so it takes one round trip except for
// its first use on a connection.
func (c *conn) use(ctx context.Context, query string, args []any) ([]driver.Value, error) {
	stmt := c.using[query]
	if stmt == nil {
		var err error
		if stmt, err = prepare(ctx, c.inner, query); err != nil {
			return nil, err
		}
		if c.using == nil {
			c.using = make(map[string]driver.Stmt)
		}
		c.using[query] = stmt
	}
	given := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		given[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	return askPrepared(ctx, stmt, given)
}

// lost makes the pool retry on another connection if DEALLOCATE or DISCARD removed the prepared statement that
// presents grants. Nothing was done before.
func (c *conn) lost(err error) error {
	if report, ok := reports(err); ok && report.SQLState == "26000" { // invalid_sql_statement_name
		c.broken = true
		return driver.ErrBadConn
	}
	return err
}

// outside fails if a statement's text has begun a transaction. Presenting a grant would commit that transaction,
// although its owner has not.
func (c *conn) outside(ctx context.Context) error {
	if !c.mayBeOpen {
		return nil
	}
	err := c.probe(ctx)
	if report, ok := reports(err); ok && report.SQLState == "25P01" { // no_active_sql_transaction
		c.mayBeOpen = false
		return nil
	} else if err != nil && !ok {
		return err
	}
	return errBegunByText
}

// probe runs statements that succeed only inside a transaction.
func (c *conn) probe(ctx context.Context) error {
	for _, query := range []string{"SAVEPOINT fencegate_probe", "RELEASE fencegate_probe"} {
		stmt, err := prepare(ctx, c.inner, query)
		if err != nil {
			return err
		}
		_, err = execPrepared(ctx, stmt, nil)
		if err := errors.Join(err, stmt.Close()); err != nil {
			return err
		}
	}
	return nil
}

var errBegunByText = &fence.InvalidError{
	Field:  "transaction",
	Reason: "was begun by a statement: under a grant use BeginTx",
}

// PrepareContext prepares a statement, which needs no grant.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	inner, err := prepare(ctx, c.inner, query)
	if err != nil {
		c.failed(err)
		return nil, Translate(err)
	}
	return &stmt{conn: c, inner: inner, query: query}, nil
}

// ExecContext runs a statement: in the open transaction, or in one of its own if ctx
// has grants.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	inner, ok := c.inner.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	return c.exec(ctx, query, func() (driver.Result, error) { return inner.ExecContext(ctx, query, args) })
}

// QueryContext is like ExecContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	inner, ok := c.inner.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	return c.query(ctx, query, func() (driver.Rows, error) { return inner.QueryContext(ctx, query, args) })
}

// ResetSession is called before the pool reuses the connection.
func (c *conn) ResetSession(ctx context.Context) error {
	if c.broken || c.tx != nil {
		return driver.ErrBadConn
	}
	if inner, ok := c.inner.(driver.SessionResetter); ok {
		if err := inner.ResetSession(ctx); err != nil {
			return err
		}
	}
	if c.mayBeSet {
		if _, err := c.ask(ctx, core.SQLClear); err != nil {
			return driver.ErrBadConn
		}
		c.mayBeSet = false
	}
	return nil
}

// IsValid reports whether the pool may reuse the connection.
func (c *conn) IsValid() bool {
	inner, ok := c.inner.(driver.Validator)
	return !c.broken && (!ok || inner.IsValid())
}

// Ping forwards to the driver's connection.
func (c *conn) Ping(ctx context.Context) error {
	if inner, ok := c.inner.(driver.Pinger); ok {
		return inner.Ping(ctx)
	}
	return nil
}

// CheckNamedValue forwards to the driver's connection.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if inner, ok := c.inner.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// Prepare is PrepareContext without a context. database/sql does not call it.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// Begin is BeginTx without a context. database/sql does not call it.
func (c *conn) Begin() (driver.Tx, error) { return c.BeginTx(context.Background(), driver.TxOptions{}) }

// Close closes the driver's connection, and its statements with it.
func (c *conn) Close() error { return c.inner.Close() }

// failed records that the server ended a statement of the open transaction with an error.
func (c *conn) failed(err error) {
	if _, ok := reports(err); ok && c.tx != nil && !c.tx.unseen {
		c.tx.failed = true
	}
}
