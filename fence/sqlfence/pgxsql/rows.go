package pgxsql

import (
	"bytes"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencegate/fencegate/fence/sqlfence"
)

// maxHeld is how many bytes of rows are buffered before their statement is committed.
const maxHeld = 1 << 20

// rows are pgx's rows. Those of a statement in a transaction of its own are read before its COMMIT: [sql.Row], and a
// context that ends, close rows without checking the error, so an error of a later COMMIT could go unnoticed.
type rows struct {
	inner   *stdlib.Rows
	tx      *tx      // of this statement alone, until it has ended
	columns []column // of such a statement: pgx forgets them at COMMIT
	buffer  [][]driver.Value
	ended   bool
}

// hold reads the rows of a single statement and commits it.
func (r *rows) hold() error {
	for i := range r.inner.Columns() {
		r.columns = append(r.columns, columnOf(r.inner, i))
	}
	var held [][]driver.Value
	for size := 0; size < maxHeld; {
		row := make([]driver.Value, len(r.columns))
		err := r.Next(row)
		if errors.Is(err, io.EOF) {
			break // committed
		} else if err != nil {
			return err
		}
		for i, v := range row {
			size += 16
			switch v := v.(type) {
			case []byte: // may be reused for the next row
				row[i] = bytes.Clone(v)
				size += len(v)
			case string:
				size += len(v)
			}
		}
		held = append(held, row)
	}
	r.buffer = held
	return nil
}

// Next returns the buffered rows, then the remaining ones. After the last one it commits the transaction of a single
// statement.
func (r *rows) Next(dest []driver.Value) error {
	if len(r.buffer) > 0 {
		copy(dest, r.buffer[0])
		r.buffer = r.buffer[1:]
		return nil
	}
	if r.ended {
		return io.EOF
	}
	err := r.inner.Next(dest)
	if err == nil {
		return nil
	}
	if endErr := r.end(errors.Is(err, io.EOF)); endErr != nil && errors.Is(err, io.EOF) {
		return endErr
	}
	return sqlfence.Translate(err)
}

// Close discards the remaining rows. A single statement is committed anyway, as without a grant, unless its context has
// ended.
func (r *rows) Close() error {
	r.buffer = nil
	return r.end(true)
}

// end closes pgx's rows, and ends the transaction of a single statement.
func (r *rows) end(commit bool) error {
	if r.ended {
		return nil
	}
	r.ended = true
	err := sqlfence.Translate(r.inner.Close())
	switch {
	case r.tx == nil:
		return err
	case err == nil && commit:
		return r.tx.Commit()
	}
	_ = r.tx.Rollback()
	return err
}

// column is pgx's description of a column.
type column struct {
	name              string
	scan              reflect.Type
	length            int64
	precision, scale  int64
	variable, decimal bool
}

func columnOf(r *stdlib.Rows, i int) (c column) {
	c.name, c.scan = r.ColumnTypeDatabaseTypeName(i), r.ColumnTypeScanType(i)
	c.length, c.variable = r.ColumnTypeLength(i)
	c.precision, c.scale, c.decimal = r.ColumnTypePrecisionScale(i)
	return c
}

func (r *rows) column(i int) column {
	if r.columns != nil {
		return r.columns[i]
	}
	return columnOf(r.inner, i)
}

// Columns are pgx's, as their descriptions below are.
func (r *rows) Columns() []string { return r.inner.Columns() }

func (r *rows) ColumnTypeDatabaseTypeName(i int) string { return r.column(i).name }
func (r *rows) ColumnTypeScanType(i int) reflect.Type   { return r.column(i).scan }
func (r *rows) ColumnTypeLength(i int) (int64, bool) {
	return r.column(i).length, r.column(i).variable
}

func (r *rows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	c := r.column(i)
	return c.precision, c.scale, c.decimal
}
