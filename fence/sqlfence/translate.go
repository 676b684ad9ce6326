package sqlfence

import (
	"cmp"
	"errors"
	"reflect"

	"github.com/fencegate/fencegate/fence/internal/core"
)

// Translate adds the facts to an error by which PostgreSQL's fence refused, as
// pgfence's does: for SQLSTATEs ZF001 to ZF005 the result is a
// [*fence.StaleError], [*fence.NoGrantError], [*fence.NeverIssuedError],
// [*fence.WrongResourceError] or [*fence.UndrainedError] for errors.As, and the
// matching sentinel for errors.Is. The original stays in the chain and gives the
// text. Other errors, and nil, come back unchanged.
//
// Drivers tell the SQLSTATE by the method SQLState; the facts are read from a
// field Detail, which both pgx and lib/pq have.
func Translate(err error) error { return reports.Translate(err) }

// ended is [core.Reports.Ended].
func ended(err error) bool { return reports.Ended(err) }

// reports reads what PostgreSQL says of an error of any driver.
var reports core.Reports = func(err error) (core.Report, bool) {
	var state sqlState
	if !errors.As(err, &state) {
		return core.Report{}, false
	}
	severity := cmp.Or(field(state, "SeverityUnlocalized"), field(state, "Severity"))
	return core.Report{SQLState: state.SQLState(), Detail: field(state, "Detail"), Severity: severity}, true
}

// sqlState is what drivers' errors have in common.
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
