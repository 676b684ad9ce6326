package fencedsql

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

func columns(fields []pgconn.FieldDescription, types *pgtype.Map) []wire.Column {
	named := make([]wire.Column, len(fields))
	for i, f := range fields {
		kind := strconv.FormatUint(uint64(f.DataTypeOID), 10) // of a user-defined type: its oid
		if known, ok := types.TypeForOID(f.DataTypeOID); ok {
			kind = known.Name
		}
		named[i] = wire.Column{Name: f.Name, Type: kind}
	}
	return named
}

// appendRow appends a row as a JSON array. The error is an [*api.StatementError] if JSON cannot represent a value,
// which must be found before COMMIT.
func appendRow(b []byte, fields []pgconn.FieldDescription, values [][]byte) ([]byte, error) {
	b = append(b, '[')
	for i, value := range values {
		if i > 0 {
			b = append(b, ',')
		}
		embedded := fields[i].DataTypeOID == pgtype.JSONOID || fields[i].DataTypeOID == pgtype.JSONBOID
		if !utf8.Valid(value) || embedded && value != nil && !embeddable(value) {
			return nil, &api.StatementError{
				SQLState: stateNotInRepertoire, Message: "a value in the column " + strconv.Quote(fields[i].Name) + " can't stand in JSON",
				Hint: "An answer is UTF-8, with at most 10000 levels of JSON, 5 of them its own; leave client_encoding as it is.",
			}
		}
		b = appendValue(b, fields[i].DataTypeOID, value)
	}
	return append(b, ']'), nil
}

const (
	// maxLevels is the nesting limit of Go's JSON encoder and decoder.
	maxLevels = 10000
	// around is the nesting of an answer around a value: {"results":[{"rows":[[value]]}]}.
	around = 5
)

// embeddable reports whether a value is JSON, and still is inside an answer, which is written after COMMIT.
func embeddable(value []byte) bool {
	if len(value) < maxLevels-around { // each level has at least one byte
		return json.Valid(value)
	}
	inside := make([]byte, 0, len(value)+2*around)
	inside = append(inside, "[[[[["...)
	inside = append(inside, value...)
	return json.Valid(append(inside, "]]]]]"...))
}

const stateNotInRepertoire = "22021" // character_not_in_repertoire

// appendValue appends a value given in PostgreSQL's text format. Its JSON type depends only on the column's type,
// except for NULL and for floats that JSON cannot represent.
func appendValue(b []byte, oid uint32, value []byte) []byte {
	if value == nil {
		return append(b, "null"...)
	}
	switch oid {
	case pgtype.BoolOID:
		return strconv.AppendBool(b, string(value) == "t")
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.OIDOID, pgtype.JSONOID, pgtype.JSONBOID:
		return append(b, value...)
	case pgtype.Float4OID, pgtype.Float8OID:
		if last := value[len(value)-1]; '0' <= last && last <= '9' { // else NaN, Infinity or -Infinity
			return append(b, value...)
		}
	}
	quoted, err := json.Marshal(string(value))
	if err != nil {
		return append(b, "null"...) // a string cannot fail
	}
	return append(b, quoted...)
}
