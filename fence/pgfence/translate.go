package pgfence

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
)

// Translate adds the facts to an error by which PostgreSQL's fence refused: for
// SQLSTATEs ZF001 to ZF005 the result is a [*fence.StaleError],
// [*fence.NoGrantError], [*fence.NeverIssuedError], [*fence.WrongResourceError]
// or [*fence.UndrainedError] for errors.As, and the matching sentinel for
// errors.Is. The original stays in the chain and gives the text. Other errors,
// and nil, come back unchanged.
func Translate(err error) error {
	var pg *pgconn.PgError
	if _, done := fence.CodeOf(err); done || !errors.As(err, &pg) {
		return err
	}
	if facts := fence.Refusal(pg.Code, pg.Detail); facts != nil {
		return &refused{facts: facts, err: err}
	}
	return err
}

// refused is a refusal: its facts, and the error that brought it.
type refused struct{ facts, err error }

func (r *refused) Error() string   { return r.err.Error() }
func (r *refused) Unwrap() []error { return []error{r.facts, r.err} }

// ended reports whether the server itself ended the statement with an error, so
// that its transaction is rolled back. FATAL and PANIC end the session, which
// may have happened after a commit whose acknowledgement is missing.
func ended(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	severity := pg.SeverityUnlocalized
	if severity == "" {
		severity = pg.Severity
	}
	return severity == "ERROR"
}
