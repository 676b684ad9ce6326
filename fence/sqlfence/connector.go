package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Open is [sql.Open] for a database whose connections present the grants of [WithGrant].
// The driver's name is that of a registered driver, such as "pgx" or "postgres".
func Open(driverName, dataSourceName string) (*sql.DB, error) {
	db, err := sql.Open(driverName, dataSourceName)
	if err != nil {
		return nil, err
	}
	registered := db.Driver()
	if err := db.Close(); err != nil { // it has not connected yet
		return nil, err
	}
	if opener, ok := registered.(driver.DriverContext); ok {
		inner, err := opener.OpenConnector(dataSourceName)
		if err != nil {
			return nil, err
		}
		return OpenDB(inner), nil
	}
	return OpenDB(named{driver: registered, name: dataSourceName}), nil
}

// OpenDB is [sql.OpenDB] for a database whose connections present the grants of
// [WithGrant]. inner is the driver's connector, such as stdlib.GetConnector of pgx or
// pq.NewConnector.
func OpenDB(inner driver.Connector) *sql.DB { return sql.OpenDB(Connector(inner)) }

// Connector makes a driver's connections present the grants of [WithGrant]; the package documentation has the rules.
// The login is a member of fence_writer. Connecting fails if the connection's options present a grant already.
func Connector(inner driver.Connector) driver.Connector { return &connector{inner: inner} }

type connector struct{ inner driver.Connector }

var (
	_ driver.Connector = (*connector)(nil)
	_ io.Closer        = (*connector)(nil)
)

// Connect opens a connection and checks that it does not present a grant already.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{inner: inner}
	row, err := wrapped.ask(ctx, core.SQLPresents)
	if err == nil && row[0] == true {
		err = &fence.InvalidError{Field: "connection", Reason: "presents a grant by its options, but a grant is its context's: " +
			"remove fence.resource, fence.token and fence.grants from them"}
	}
	if err != nil {
		_ = inner.Close()
		return nil, fmt.Errorf("connect: %w", err)
	}
	return wrapped, nil
}

// Driver returns the wrapped driver.
func (c *connector) Driver() driver.Driver { return c.inner.Driver() }

// Close closes the driver's connector.
func (c *connector) Close() error {
	if closer, ok := c.inner.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// named is a connector for drivers that have none.
type named struct {
	driver driver.Driver
	name   string
}

func (n named) Connect(context.Context) (driver.Conn, error) { return n.driver.Open(n.name) }
func (n named) Driver() driver.Driver                        { return n.driver }

// DriverConn returns the driver's own connection from what [sql.Conn.Raw] passes, such as *stdlib.Conn of pgx. A
// connection that does not come from a [Connector] is returned unchanged. Statements on it present no grant, except
// inside a transaction that does.
func DriverConn(raw any) any {
	c, ok := raw.(*conn)
	if !ok {
		return raw
	}
	c.mayBeOpen, c.mayBeSet = true, true
	if c.tx != nil {
		c.tx.failed, c.tx.unseen = false, true
	}
	if inner, ok := c.inner.(interface{ DriverConn() driver.Conn }); ok {
		return inner.DriverConn()
	}
	return c.inner
}

// Pipeliner is a driver's connection that presents grants in the round trip of BEGIN, such as that of package pgxsql.
// BeginUnder begins a transaction, runs the query in it with its arguments as parameters, and returns the row. If it
// can't, the error is [driver.ErrSkip]. After any error no transaction is open.
type Pipeliner interface {
	driver.Conn
	BeginUnder(ctx context.Context, opts driver.TxOptions, query string, args []any) (driver.Tx, []driver.Value, error)
}

// ask reads one row of a query that has no arguments.
func (c *conn) ask(ctx context.Context, query string) ([]driver.Value, error) {
	if inner, ok := c.inner.(driver.QueryerContext); ok {
		rows, err := inner.QueryContext(ctx, query, nil)
		if err == nil {
			return one(rows)
		} else if !errors.Is(err, driver.ErrSkip) {
			return nil, err
		}
	}
	stmt, err := prepare(ctx, c.inner, query)
	if err != nil {
		return nil, err
	}
	row, err := askPrepared(ctx, stmt, nil)
	return row, errors.Join(err, stmt.Close())
}

func askPrepared(ctx context.Context, stmt driver.Stmt, args []driver.NamedValue) ([]driver.Value, error) {
	rows, err := queryPrepared(ctx, stmt, args)
	if err != nil {
		return nil, err
	}
	return one(rows)
}

// one reads a row and closes the rows.
func one(rows driver.Rows) ([]driver.Value, error) {
	row := make([]driver.Value, len(rows.Columns()))
	err := rows.Next(row)
	for i, v := range row {
		if b, ok := v.([]byte); ok {
			row[i] = string(b)
		}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // each of the fence's statements returns a row
	}
	if closeErr := rows.Close(); err == nil {
		err = closeErr
	}
	return row, err
}
