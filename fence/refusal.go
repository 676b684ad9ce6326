package fence

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNotCommitted says that a transaction whose COMMIT was not answered has been
// rolled back: nothing was written.
var ErrNotCommitted = errors.New("the transaction was not committed")

// UnknownError says that a COMMIT was not answered, or was answered without what
// makes it last. It is [ErrUnknown]; Outcome of packages pgfence and sqlfence
// resolves it.
type UnknownError struct {
	XID string // the transaction's number; empty where it was not learned in time, as in a read-only one
	Run string // the server's run, from fence.server_run; transaction numbers mean something only within it
	Err error  // what happened instead of an answer
}

func (e *UnknownError) Error() string { return fmt.Sprintf("%v: %v", ErrUnknown, e.Err) }

// Unwrap has [ErrUnknown] in it.
func (e *UnknownError) Unwrap() []error { return []error{ErrUnknown, e.Err} }

// Refusal is the error with the facts of a refusal by PostgreSQL's fence: a
// [*StaleError], [*NoGrantError], [*NeverIssuedError], [*WrongResourceError],
// [*UndrainedError] or [*SpentError], by its SQLSTATE and its DETAIL. nil: the SQLSTATE is none of
// the fence's. A DETAIL that can't be read, as behind a server that hides it,
// leaves the facts empty.
func Refusal(sqlState, detail string) error {
	var d struct {
		Resource  string `json:"resource"`
		Presented string `json:"presented"`
		Recorded  string `json:"recorded"`
		Needed    string `json:"needed"`
		HeldBy    string `json:"held_by"`
		Ended     bool   `json:"ended"`
	}
	_ = json.Unmarshal([]byte(detail), &d)
	presented, _ := ParseToken(d.Presented) // "0", a seal without its token, is 0
	recorded, _ := ParseToken(d.Recorded)

	switch sqlState {
	case "ZF001":
		return &StaleError{Resource: d.Resource, Presented: presented, Recorded: recorded, Ended: d.Ended}
	case "ZF002":
		return &NoGrantError{Needed: d.Needed}
	case "ZF003":
		return &NeverIssuedError{Resource: d.Resource, Presented: presented, Recorded: recorded}
	case "ZF004":
		return &WrongResourceError{Resource: d.Resource, Needed: d.Needed}
	case "ZF005":
		return &UndrainedError{Resource: d.Resource, Token: recorded, Detail: d.HeldBy}
	case "ZF006":
		return &SpentError{Resource: d.Resource, Armed: presented, Recorded: recorded}
	}
	return nil
}
