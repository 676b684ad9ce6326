package sqlfence

import (
	"errors"
	"reflect"

	"github.com/fencegate/fencegate/fence"
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
func Translate(err error) error {
	state, fromServer := serverError(err)
	if _, done := fence.CodeOf(err); done || !fromServer {
		return err
	}
	if facts := fence.Refusal(state.SQLState(), field(state, "Detail")); facts != nil {
		return &refused{facts: facts, err: err}
	}
	return err
}

// refused is a refusal: its facts, and the error that brought it.
type refused struct{ facts, err error }

func (r *refused) Error() string   { return r.err.Error() }
func (r *refused) Unwrap() []error { return []error{r.facts, r.err} }

// sqlState is what drivers' errors have in common.
type sqlState interface {
	error
	SQLState() string
}

func serverError(err error) (state sqlState, ok bool) {
	ok = errors.As(err, &state)
	return state, ok
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

// ended reports whether the server itself ended the statement with an error, so
// that its transaction is rolled back. FATAL and PANIC end the session, which
// may have happened after a commit whose acknowledgement is missing. A severity
// in another language counts as one of those, which is the safe side.
func ended(err error) bool {
	state, ok := serverError(err)
	if !ok {
		return false
	}
	if unlocalized := field(state, "SeverityUnlocalized"); unlocalized != "" {
		return unlocalized == "ERROR"
	}
	return field(state, "Severity") == "ERROR"
}
