package fence

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNotCommitted says that a transaction whose COMMIT was not answered has been rolled back: nothing was written.
var ErrNotCommitted = errors.New("the transaction was not committed")

// UnknownError says that a COMMIT was not answered, or that its replication to a synchronous standby is not
// confirmed. It is [ErrUnknown]; Outcome of packages pgfence and sqlfence resolves it.
type UnknownError struct {
	XID string // the transaction's ID; empty if it was not read in time, or for a read-only transaction
	Run string // the server's run, from fence.server_run; transaction IDs are comparable only within it
	Err error  // the error of the COMMIT
}

func (e *UnknownError) Error() string { return fmt.Sprintf("%v: %v", ErrUnknown, e.Err) }

// Unwrap returns [ErrUnknown] and Err.
func (e *UnknownError) Unwrap() []error { return []error{ErrUnknown, e.Err} }

// Refusal builds the error of a refusal by PostgreSQL's fence from its SQLSTATE and DETAIL: a [*StaleError],
// [*NoGrantError], [*NeverIssuedError], [*WrongResourceError] or [*UndrainedError]. It is nil if the SQLSTATE is not one
// of the fence's. If DETAIL can't be read, for example behind a proxy that hides it, the fields stay empty.
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
	presented, _ := ParseToken(d.Presented) // "0", a seal without its token, gives 0
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
	}
	return nil
}
