package fence

import (
	"encoding/json"
	"fmt"
)

// StaleError says that a write was refused because a newer token is recorded, or because the grant has ended.
type StaleError struct {
	Resource  string
	Presented Token // 0 if the writer presented a seal without its token
	Recorded  Token // 0 if the newer token is not visible to the writer's snapshot
	Ended     bool  // the lease was released or has expired, and the resource was not acquired since
}

func (e *StaleError) Error() string {
	switch {
	case e.Ended:
		return fmt.Sprintf("the lease of token %d for %q has ended", e.Recorded, e.Resource)
	case e.Recorded == 0:
		return fmt.Sprintf("stale fencing token %d for %q: the fence was raised, or the lease released, after this transaction's snapshot",
			e.Presented, e.Resource)
	case e.Presented == 0:
		return fmt.Sprintf("stale fencing token, presented by its seal alone, for %q: the fence stands at %d", e.Resource, e.Recorded)
	}
	return fmt.Sprintf("stale fencing token %d for %q: the fence stands at %d", e.Presented, e.Resource, e.Recorded)
}

// Is matches [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// NoGrantError says that a guarded write came without a grant.
type NoGrantError struct{ Needed string } // the resource that the write needs; empty if it depends on the row

func (e *NoGrantError) Error() string {
	if e.Needed == "" {
		return "write without a fencing token"
	}
	return fmt.Sprintf("write without a fencing token: it needs a grant of %q", e.Needed)
}

// Is matches [ErrNoGrant].
func (e *NoGrantError) Is(target error) bool { return target == ErrNoGrant }

// NeverIssuedError says that the presented token and seal are not what was issued for the resource: forged, mistyped,
// issued before an invalidation, or unsealed although sealed grants are required.
type NeverIssuedError struct {
	Resource  string
	Presented Token
	Recorded  Token // 0 if the resource has no fence yet
}

func (e *NeverIssuedError) Error() string {
	return fmt.Sprintf("fencing token %d was never issued for %q with the presented seal", e.Presented, e.Resource)
}

// Is matches [ErrNeverIssued].
func (e *NeverIssuedError) Is(target error) bool { return target == ErrNeverIssued }

// WrongResourceError says that the write needs another resource than the grant's.
type WrongResourceError struct {
	Resource string // the grant's
	Needed   string // the write's
}

func (e *WrongResourceError) Error() string {
	return fmt.Sprintf("grant is for %q, but the write needs %q", e.Resource, e.Needed)
}

// Is matches [ErrWrongResource].
func (e *WrongResourceError) Is(target error) bool { return target == ErrWrongResource }

// UndrainedError says that the fence stands at Token, but transactions that passed the check under an older grant
// could not be ended, so the new holder must not start yet. Arming the same grant again retries.
type UndrainedError struct {
	Resource string
	Token    Token  // 0: the fence could not even be raised
	Detail   string // what holds it: a prepared transaction's gid, or a missing privilege
}

func (e *UndrainedError) Error() string {
	if e.Token == 0 {
		return fmt.Sprintf("fence of %q was not raised: other transactions still hold it: %s", e.Resource, e.Detail)
	}
	return fmt.Sprintf("fence of %q is raised to %d, but stale transactions still hold it: %s", e.Resource, e.Token, e.Detail)
}

// Is matches [ErrUndrained].
func (e *UndrainedError) Is(target error) bool { return target == ErrUndrained }

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
