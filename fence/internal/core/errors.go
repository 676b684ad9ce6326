package core

import (
	"errors"

	"github.com/fencegate/fencegate/fence"
)

// ErrTxEnded says that the function given to InTx ended the transaction itself, so
// InTx can't answer for it: what was written before may be committed.
var ErrTxEnded = errors.New("the function given to InTx ended its transaction; InTx does that")

// Report is what PostgreSQL says of an error.
type Report struct {
	SQLState string
	Detail   string
	Severity string // not localized where the driver can tell
}

// Reports finds PostgreSQL's report in an error of a driver; false: the error is none
// of PostgreSQL's.
type Reports func(err error) (Report, bool)

// Translate adds the facts to an error by which the fence refused. The original stays
// in the chain and gives the text. Other errors, and nil, come back unchanged.
func (r Reports) Translate(err error) error {
	if _, done := fence.CodeOf(err); done {
		return err
	}
	report, ok := r(err)
	if !ok {
		return err
	}
	if facts := fence.Refusal(report.SQLState, report.Detail); facts != nil {
		return &refused{facts: facts, err: err}
	}
	return err
}

// refused is a refusal: its facts, and the error that brought it.
type refused struct{ facts, err error }

func (r *refused) Error() string   { return r.err.Error() }
func (r *refused) Unwrap() []error { return []error{r.facts, r.err} }

// Ended reports whether the server itself ended the statement with an error, so that
// its transaction is rolled back. FATAL and PANIC end the session, which may have
// happened after a commit whose acknowledgement is missing. A severity in another
// language counts as one of those, which is the safe side.
func (r Reports) Ended(err error) bool {
	report, ok := r(err)
	return ok && report.Severity == "ERROR"
}
