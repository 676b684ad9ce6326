package core

import (
	"errors"

	"github.com/fencegate/fencegate/fence"
)

// ErrTxEnded says that the function given to InTx ended the transaction itself, so
// InTx does not know the outcome: what was written before may be committed.
var ErrTxEnded = errors.New("the function given to InTx ended its transaction; InTx does that")

// Report is PostgreSQL's description of an error.
type Report struct {
	SQLState string
	Detail   string
	Severity string // not localized if the driver provides that
}

// Reports extracts PostgreSQL's report from a driver's error; false: the error did not come from PostgreSQL.
type Reports func(err error) (Report, bool)

// Translate adds the facts to an error by which the fence refused. The original stays
// in the chain and provides the text. Other errors, and nil, are returned unchanged.
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

// refused is a refusal: its facts, and the error that it was read from.
type refused struct{ facts, err error }

func (r *refused) Error() string   { return r.err.Error() }
func (r *refused) Unwrap() []error { return []error{r.facts, r.err} }

// Ended reports whether the server itself ended the statement with an error, so that its transaction is rolled back.
// FATAL and PANIC end the session, possibly after a commit whose acknowledgement was lost, so they do not count. A
// localized severity does not count either, which errs on the safe side.
func (r Reports) Ended(err error) bool {
	report, ok := r(err)
	return ok && report.Severity == "ERROR"
}
