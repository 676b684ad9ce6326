package sqlfence

import (
	"cmp"
	"errors"
	"reflect"

	"github.com/fencegate/fencegate/fence/internal/core"
)

// Translate adds the facts to a refusal by PostgreSQL's fence, as pgfence does: for SQLSTATEs ZF001 to ZF005 the
// result is a [*fence.StaleError], [*fence.NoGrantError], [*fence.NeverIssuedError], [*fence.WrongResourceError] or
// [*fence.UndrainedError] for errors.As, and the matching sentinel for errors.Is. The original error stays in the chain
// and provides the text. Other errors, and nil, are returned unchanged.
//
// The SQLSTATE is read from the method SQLState, and the facts from a field Detail, which both pgx and lib/pq have.
func Translate(err error) error { return reports.Translate(err) }

// ended is [core.Reports.Ended].
func ended(err error) bool { return reports.Ended(err) }

// reports reads PostgreSQL's report from any driver's error.
var reports core.Reports = func(err error) (core.Report, bool) {
	var state sqlState
	if !errors.As(err, &state) {
		return core.Report{}, false
	}
	severity := cmp.Or(field(state, "SeverityUnlocalized"), field(state, "Severity"))
	return core.Report{SQLState: state.SQLState(), Detail: field(state, "Detail"), Severity: severity}, true
}

// sqlState is the method that drivers' errors share.
type sqlState interface {
	error
	SQLState() string
}

// field reads a text field of a driver's error.
func field(err error, name string) string {
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() != reflect.Struct {
		return ""
	}
	if f := v.FieldByName(name); f.Kind() == reflect.String {
		return f.String()
	}
	return ""
}
