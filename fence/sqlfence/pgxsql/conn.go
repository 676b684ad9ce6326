package pgxsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

type stdConn = stdlib.Conn

// conn is pgx's connection for database/sql, whose transactions present the grants of their contexts.
type conn struct {
	*stdConn
	tx       *tx  // the open transaction, if it presents grants
	mayBeSet bool // a statement may have made fence.* settings of the session
}

// Conn is pgx's own connection, for [sql.Conn.Raw].
func (c *conn) Conn() *pgx.Conn {
	c.mayBeSet = true
	return c.stdConn.Conn()
}

// BeginTx begins a transaction under the grants of ctx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if len(core.Carried(ctx)) == 0 {
		return c.stdConn.BeginTx(ctx, opts)
	}
	t, err := c.begin(ctx, opts, true)
	if err != nil {
		return nil, err // a nil interface, not a nil *tx
	}
	return t, nil
}

// begin sends BEGIN and the grants of ctx together. With named it also reads the transaction's ID, which resolves an
// unanswered COMMIT.
func (c *conn) begin(ctx context.Context, opts driver.TxOptions, named bool) (*tx, error) {
	grants := core.Carried(ctx)
	modes, err := modesOf(opts)
	if err == nil {
		err = core.ValidateGrants(grants)
	}
	if err != nil {
		return nil, err
	}
	inner := c.stdConn.Conn()
	if inner.IsClosed() {
		return nil, driver.ErrBadConn
	}
	if inner.PgConn().TxStatus() != 'I' { // it was begun by a statement's text
		return nil, core.Agree(ctx, nil)
	}
	t := &tx{conn: c, grants: grants, ctx: ctx}
	batch := &pgx.Batch{}
	if named {
		modes.CommitQuery = core.SQLCommit
		batch.BeginTx(modes)
		query, args := core.Using(grants, core.SQLUseKnown, core.SQLUseManyKnown)
		batch.Queue(query, args...).QueryRow(func(row pgx.Row) error { return row.Scan(nil, nil, &t.xid, &t.run) })
	} else {
		batch.BeginTx(modes)
		query, args := core.Using(grants, core.SQLUse, core.SQLUseMany)
		batch.Queue(query, args...)
	}
	results := inner.SendBatch(ctx, batch)
	err = results.Close()
	t.inner = results.Tx()
	if err != nil {
		if t.inner != nil {
			_ = t.Rollback() // on failure pgx closes the connection, which rolls back too
		}
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "26000" {
			return nil, driver.ErrBadConn // DEALLOCATE or DISCARD has removed the prepared statement; nothing was done
		}
		return nil, fmt.Errorf("begin under %s: %w", core.GrantNames(grants), sqlfence.Translate(err))
	}
	c.tx = t
	return t, nil
}

// modesOf translates the options as stdlib does.
func modesOf(opts driver.TxOptions) (modes pgx.TxOptions, err error) {
	switch level := sql.IsolationLevel(opts.Isolation); level {
	case sql.LevelDefault:
	case sql.LevelReadUncommitted:
		modes.IsoLevel = pgx.ReadUncommitted
	case sql.LevelReadCommitted:
		modes.IsoLevel = pgx.ReadCommitted
	case sql.LevelRepeatableRead, sql.LevelSnapshot:
		modes.IsoLevel = pgx.RepeatableRead
	case sql.LevelSerializable:
		modes.IsoLevel = pgx.Serializable
	default:
		return modes, fmt.Errorf("unsupported isolation: %v", level)
	}
	if opts.ReadOnly {
		modes.AccessMode = pgx.ReadOnly
	}
	return modes, nil
}

// before refuses statements that would leave the transaction that presents the grants, and reports whether a statement
// runs under grants, and whether in a transaction of its own.
func (c *conn) before(ctx context.Context, query string, args []driver.NamedValue) (under, alone bool, err error) {
	c.mayBeSet = c.mayBeSet || has(query, "fence.") || has(query, `fence"`)
	open := c.stdConn.Conn().PgConn().TxStatus() != 'I'
	switch {
	case c.tx == nil && len(core.Carried(ctx)) == 0:
		return false, false, nil
	case c.tx != nil && !open: // ended by Conn
		return false, false, sqlfence.ErrTxEnded
	case c.tx != nil:
		err = core.Agree(ctx, c.tx.grants)
	case open:
		err = core.Agree(ctx, nil)
	}
	if err == nil && (controls(query) || slices.ContainsFunc(args, isSimple)) {
		err = errControl
	}
	return true, c.tx == nil, err
}

var errControl = &fence.InvalidError{
	Field:  "statement",
	Reason: "begins or ends a transaction by its text, or uses the simple protocol: under a grant use BeginTx, Commit and Rollback",
}

// isSimple reports whether an argument chooses the simple protocol, which accepts texts of several statements.
func isSimple(arg driver.NamedValue) bool { return arg.Value == any(pgx.QueryExecModeSimpleProtocol) }

// ExecContext runs a statement: in the open transaction, or in one of its own if ctx has grants.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	under, alone, err := c.before(ctx, query, args)
	switch {
	case err != nil:
		return nil, err
	case !under:
		result, err := c.stdConn.ExecContext(ctx, query, args)
		return result, sqlfence.Translate(err)
	case !alone:
		return c.exec(ctx, query, args)
	}
	t, err := c.begin(ctx, driver.TxOptions{}, !reads(query))
	if err != nil {
		return nil, err
	}
	result, err := c.exec(ctx, query, args)
	if err != nil {
		_ = t.Rollback() // the statement's error is more informative
		return nil, err
	}
	if err := t.Commit(); err != nil {
		return nil, err
	}
	return result, nil
}

// exec executes one statement. [pgx.Conn.Exec] would use the simple protocol for a statement without arguments, which
// accepts texts of several statements.
func (c *conn) exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.stdConn.Conn().IsClosed() {
		return nil, driver.ErrBadConn
	}
	values := []any{pgx.QueryExecModeExec} // prepares nothing
	if len(args) > 0 {
		values = values[:0]
	}
	for _, arg := range args {
		values = append(values, arg.Value)
	}
	rows, err := c.stdConn.Conn().Query(ctx, query, values...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil && pgconn.SafeToRetry(err) {
		return nil, driver.ErrBadConn // as stdlib says it
	}
	return driver.RowsAffected(rows.CommandTag().RowsAffected()), sqlfence.Translate(err)
}

// QueryContext runs a statement as ExecContext does. Outside of a transaction it commits before it returns the rows, so
// a caller that has them knows the statement's outcome. Beyond [maxHeld] bytes of rows it commits at their end.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	_, alone, err := c.before(ctx, query, args)
	if err != nil {
		return nil, err
	}
	var t *tx
	if alone {
		if t, err = c.begin(ctx, driver.TxOptions{}, !reads(query)); err != nil {
			return nil, err
		}
	}
	inner, err := c.stdConn.QueryContext(ctx, query, args)
	if err != nil {
		if alone {
			_ = t.Rollback() // the statement's error is more informative
		}
		return nil, sqlfence.Translate(err)
	}
	r := &rows{inner: inner.(*stdlib.Rows), tx: t} //nolint:forcetypeassert // pgx's
	if !alone {
		return r, nil
	}
	return r, r.hold()
}

// PrepareContext prepares a statement, which needs no grant.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	inner, err := c.stdConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, sqlfence.Translate(err)
	}
	return &stmt{Stmt: inner.(*stdlib.Stmt), conn: c, query: query}, nil //nolint:forcetypeassert // pgx's
}

// stmt is a prepared statement. pgx knows it by its text.
type stmt struct {
	*stdlib.Stmt
	conn  *conn
	query string
}

// ExecContext is that of the connection.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

// QueryContext is that of the connection.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}

// ResetSession is called before the pool reuses the connection. pgx's refuses one with an open transaction.
func (c *conn) ResetSession(ctx context.Context) error {
	if err := c.stdConn.ResetSession(ctx); err != nil {
		return err
	}
	if c.mayBeSet {
		if _, err := c.stdConn.Conn().Exec(ctx, core.SQLClear); err != nil {
			return driver.ErrBadConn
		}
		c.mayBeSet = false
	}
	return nil
}
