package fencedsql

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// arguments are a statement's parameters in PostgreSQL's text format.
type arguments struct {
	values [][]byte // nil: NULL
	oids   []uint32 // 0: the server infers the type
}

// maxArguments is the protocol's limit.
const maxArguments = math.MaxUint16

func readArguments(field string, raw []json.RawMessage) (arguments, error) {
	if len(raw) > maxArguments {
		return arguments{}, &fence.InvalidError{Field: field, Reason: fmt.Sprintf("are %d; a statement takes at most %d", len(raw), maxArguments)}
	}
	a := arguments{values: make([][]byte, len(raw)), oids: make([]uint32, len(raw))}
	for i, value := range raw {
		switch value[0] {
		case 'n': // null
		case '"':
			var s string
			if err := json.Unmarshal(value, &s); err != nil {
				return a, &fence.InvalidError{Field: field, Reason: "has a malformed string"}
			}
			a.values[i] = []byte(s)
		case '{':
			a.values[i], a.oids[i] = value, pgtype.JSONBOID
		default: // true, false, a number with all its digits, or an array, for which resolveArrays needs the type
			a.values[i] = value
		}
	}
	return a, nil
}

func hasArray(raw []json.RawMessage) bool {
	for _, value := range raw {
		if value[0] == '[' {
			return true
		}
	}
	return false
}

// resolveArrays asks the server for the parameters' types, in one round trip, and writes JSON arrays as PostgreSQL
// arrays for array parameters.
func (a *arguments) resolveArrays(ctx context.Context, conn *pgconn.PgConn, types *pgtype.Map, st wire.Statement) error {
	description, err := conn.Prepare(ctx, "", st.SQL, a.oids)
	if err != nil {
		return err
	}
	for i, value := range st.Args {
		if value[0] != '[' || i >= len(description.ParamOIDs) {
			continue
		}
		a.oids[i] = description.ParamOIDs[i]
		known, ok := types.TypeForOID(a.oids[i])
		if !ok {
			continue
		}
		if _, ok := known.Codec.(*pgtype.ArrayCodec); !ok {
			continue
		}
		var elements []json.RawMessage
		if err := json.Unmarshal(value, &elements); err != nil {
			return err
		}
		a.values[i] = appendArray(nil, elements)
	}
	return nil
}

// appendArray appends PostgreSQL's array literal: {1,NULL,"a b",{…}}.
func appendArray(b []byte, elements []json.RawMessage) []byte {
	b = append(b, '{')
	for i, e := range elements {
		if i > 0 {
			b = append(b, ',')
		}
		switch e = bytes.TrimSpace(e); e[0] {
		case 'n':
			b = append(b, "NULL"...)
		case '[':
			var inner []json.RawMessage
			_ = json.Unmarshal(e, &inner) // e was part of a valid document
			b = appendArray(b, inner)
		case '"':
			var s string
			_ = json.Unmarshal(e, &s)
			b = appendQuoted(b, s)
		case '{':
			b = appendQuoted(b, string(e))
		default:
			b = append(b, e...)
		}
	}
	return append(b, '}')
}

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
