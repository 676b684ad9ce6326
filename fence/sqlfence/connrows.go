package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
)

// rows are the driver's rows. If tx is set, it is the transaction of this single statement and ends with the rows.
type rows struct {
	inner driver.Rows
	conn  *conn
	tx    *tx
	ctx   context.Context // of the statement, if tx is set
}

// Next reads a row. After the last one it commits the transaction of a single statement.
func (r *rows) Next(dest []driver.Value) error {
	err := r.inner.Next(dest)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, io.EOF):
		r.conn.failed(err)
		_ = r.end(false) // the rows' own error is more informative
		return Translate(err)
	case r.tx == nil || r.HasNextResultSet():
		return err
	}
	if endErr := r.end(true); endErr != nil {
		return endErr
	}
	return err
}

// Close discards the remaining rows. A single statement is committed anyway, as without a grant, unless its context
// has ended.
func (r *rows) Close() error {
	if r.tx != nil {
		return r.end(r.ctx.Err() == nil)
	}
	return Translate(r.inner.Close())
}

// end ends the transaction of a single statement, once.
func (r *rows) end(commit bool) error {
	t := r.tx
	if t == nil {
		return nil
	}
	r.tx = nil
	if err := r.inner.Close(); err != nil {
		t.abandon()
		return Translate(err)
	}
	if !commit {
		t.abandon()
		return r.ctx.Err()
	}
	return t.finish(r.ctx)
}

// Columns forwards to the driver's rows, as the methods below do.
func (r *rows) Columns() []string { return r.inner.Columns() }

// HasNextResultSet is false if the driver supports one result only.
func (r *rows) HasNextResultSet() bool {
	inner, ok := r.inner.(driver.RowsNextResultSet)
	return ok && inner.HasNextResultSet()
}

// NextResultSet advances to the next result.
func (r *rows) NextResultSet() error {
	inner, ok := r.inner.(driver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	return Translate(inner.NextResultSet())
}

// The column types are the driver's, or database/sql's defaults if it has none.

func (r *rows) ColumnTypeDatabaseTypeName(i int) string { return columnOf(r.inner, i).name }
func (r *rows) ColumnTypeScanType(i int) reflect.Type   { return columnOf(r.inner, i).scan }
func (r *rows) ColumnTypeLength(i int) (int64, bool)    { return columnOf(r.inner, i).lengthOf() }
func (r *rows) ColumnTypeNullable(i int) (nullable, ok bool) {
	return columnOf(r.inner, i).nullableOf()
}

func (r *rows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return columnOf(r.inner, i).decimalOf()
}

var (
	_ driver.RowsNextResultSet              = (*rows)(nil)
	_ driver.RowsColumnTypeDatabaseTypeName = (*rows)(nil)
	_ driver.RowsColumnTypeScanType         = (*rows)(nil)
	_ driver.RowsColumnTypeLength           = (*rows)(nil)
	_ driver.RowsColumnTypeNullable         = (*rows)(nil)
	_ driver.RowsColumnTypePrecisionScale   = (*rows)(nil)
)

// column is the driver's description of a column.
type column struct {
	name             string
	scan             reflect.Type
	length           int64
	hasLength        bool
	nullable         bool
	hasNullable      bool
	precision, scale int64
	hasDecimal       bool
}

func (c column) lengthOf() (length int64, ok bool) { return c.length, c.hasLength }
func (c column) nullableOf() (nullable, ok bool)   { return c.nullable, c.hasNullable }
func (c column) decimalOf() (precision, scale int64, ok bool) {
	return c.precision, c.scale, c.hasDecimal
}

func columnOf(r driver.Rows, i int) (c column) {
	c.scan = reflect.TypeFor[any]()
	if inner, ok := r.(driver.RowsColumnTypeDatabaseTypeName); ok {
		c.name = inner.ColumnTypeDatabaseTypeName(i)
	}
	if inner, ok := r.(driver.RowsColumnTypeScanType); ok {
		c.scan = inner.ColumnTypeScanType(i)
	}
	if inner, ok := r.(driver.RowsColumnTypeLength); ok {
		c.length, c.hasLength = inner.ColumnTypeLength(i)
	}
	if inner, ok := r.(driver.RowsColumnTypeNullable); ok {
		c.nullable, c.hasNullable = inner.ColumnTypeNullable(i)
	}
	if inner, ok := r.(driver.RowsColumnTypePrecisionScale); ok {
		c.precision, c.scale, c.hasDecimal = inner.ColumnTypePrecisionScale(i)
	}
	return c
}
