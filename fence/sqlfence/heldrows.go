package sqlfence

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
	"slices"
)

// maxHeld is how many bytes of rows are buffered before their statement is committed.
const maxHeld = 1 << 20

// heldRows are the rows of a single statement that were read before its COMMIT. [sql.Row], and a context that ends,
// close rows without checking the error, so an error of a later COMMIT could go unnoticed.
type heldRows struct {
	*rows // the remaining rows; its tx is nil if there are none

	names   []string
	columns []column
	held    [][]driver.Value
	next    int
	beyond  bool // at a later result, which is not buffered
}

// hold reads the rows of a statement and commits it.
func hold(ctx context.Context, t *tx, inner driver.Rows) (driver.Rows, error) {
	h := &heldRows{rows: &rows{inner: inner, conn: t.conn, tx: t, ctx: ctx}, names: slices.Clone(inner.Columns())}
	for i := range h.names {
		h.columns = append(h.columns, columnOf(inner, i))
	}
	for size := 0; size < maxHeld; {
		row := make([]driver.Value, len(h.names))
		err := h.rows.Next(row)
		if errors.Is(err, io.EOF) {
			break // commits, unless another result follows
		}
		if err != nil {
			return nil, err
		}
		for i, v := range row {
			size += 16
			switch v := v.(type) {
			case []byte: // the driver reuses it for the next row
				row[i] = bytes.Clone(v)
				size += len(v)
			case string:
				size += len(v)
			}
		}
		h.held = append(h.held, row)
	}
	return h, nil
}

// Next returns the buffered rows, then the remaining ones.
func (h *heldRows) Next(dest []driver.Value) error {
	if h.next < len(h.held) {
		copy(dest, h.held[h.next])
		h.held[h.next] = nil
		h.next++
		return nil
	}
	if h.tx == nil {
		return io.EOF
	}
	return h.rows.Next(dest)
}

// Close discards the remaining rows.
func (h *heldRows) Close() error {
	h.next = len(h.held)
	if h.tx == nil {
		return nil
	}
	return h.rows.Close()
}

// HasNextResultSet forwards to the driver's rows, unless all of them were read.
func (h *heldRows) HasNextResultSet() bool { return h.tx != nil && h.rows.HasNextResultSet() }

// NextResultSet advances to a result that is not buffered.
func (h *heldRows) NextResultSet() error {
	if h.tx == nil {
		return io.EOF
	}
	h.beyond, h.next = true, len(h.held)
	return h.rows.NextResultSet()
}

// Columns are the columns of the current result.
func (h *heldRows) Columns() []string {
	if h.beyond {
		return h.rows.Columns()
	}
	return h.names
}

func (h *heldRows) column(i int) column {
	if h.beyond {
		return columnOf(h.inner, i)
	}
	return h.columns[i]
}

// The column types are the driver's, read before the rows.

func (h *heldRows) ColumnTypeDatabaseTypeName(i int) string      { return h.column(i).name }
func (h *heldRows) ColumnTypeScanType(i int) reflect.Type        { return h.column(i).scan }
func (h *heldRows) ColumnTypeLength(i int) (int64, bool)         { return h.column(i).lengthOf() }
func (h *heldRows) ColumnTypeNullable(i int) (nullable, ok bool) { return h.column(i).nullableOf() }
func (h *heldRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return h.column(i).decimalOf()
}
