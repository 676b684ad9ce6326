package pgfence

import (
	"encoding/json"
	"errors"
	"strings"

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
	if facts := factsOf(pg); facts != nil {
		return &refused{facts: facts, err: err}
	}
	return err
}

// refused is a refusal: its facts, and the error that brought it.
type refused struct{ facts, err error }

func (r *refused) Error() string   { return r.err.Error() }
func (r *refused) Unwrap() []error { return []error{r.facts, r.err} }

func factsOf(pg *pgconn.PgError) error {
	if !strings.HasPrefix(pg.Code, "ZF") {
		return nil
	}
	var d struct {
		Resource  string `json:"resource"`
		Presented string `json:"presented"`
		Recorded  string `json:"recorded"`
		Needed    string `json:"needed"`
		HeldBy    string `json:"held_by"`
	}
	// A DETAIL that can't be read, as behind a server that hides it, leaves the facts empty; the code still counts.
	_ = json.Unmarshal([]byte(pg.Detail), &d)
	presented, _ := fence.ParseToken(d.Presented) // "0", a seal without its token, is 0
	recorded, _ := fence.ParseToken(d.Recorded)

	switch pg.Code {
	case "ZF001":
		return &fence.StaleError{Resource: d.Resource, Presented: presented, Recorded: recorded}
	case "ZF002":
		return &fence.NoGrantError{Needed: d.Needed}
	case "ZF003":
		return &fence.NeverIssuedError{Resource: d.Resource, Presented: presented, Recorded: recorded}
	case "ZF004":
		return &fence.WrongResourceError{Resource: d.Resource, Needed: d.Needed}
	case "ZF005":
		return &fence.UndrainedError{Resource: d.Resource, Token: recorded, Detail: d.HeldBy}
	}
	return nil
}

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
