package fence

import (
	"errors"
	"fmt"
)

// Sentinels for errors.Is. Each refusal has a type that carries its facts.
var (
	// ErrStale: a newer token is recorded, or the lease has ended. The write was
	// refused and changed nothing. Do not retry under the same grant.
	ErrStale = errors.New("stale fencing token")
	// ErrNoGrant: a guarded write came without a grant.
	ErrNoGrant = errors.New("write without a fencing token")
	// ErrNeverIssued: the presented token and seal are not what was issued.
	ErrNeverIssued = errors.New("fencing token was never issued")
	// ErrWrongResource: the grant is for another resource than the write needs.
	ErrWrongResource = errors.New("grant is for another resource")
	// ErrUndrained: the fence is raised, but a stale transaction could not be ended.
	ErrUndrained = errors.New("stale transactions still hold the resource")
	// ErrNotRaised: arming failed because the recorded token is not lower.
	ErrNotRaised = errors.New("fence was not raised")
	// ErrUnknown: whether the operation took effect is not known. Resolve it
	// before acting on either assumption.
	ErrUnknown = errors.New("outcome is unknown")
	// ErrInvalid: malformed input. Nothing was attempted.
	ErrInvalid = errors.New("invalid input")
)

// NotRaisedError says that arming failed: the recorded token is not lower than
// the one offered, so another acquisition is newer or the token source fell back.
type NotRaisedError struct {
	Resource string
	Offered  Token
	Recorded Token
}

func (e *NotRaisedError) Error() string {
	return fmt.Sprintf("fence of %q was not raised to %d: it stands at %d", e.Resource, e.Offered, e.Recorded)
}

// Is matches [ErrNotRaised].
func (e *NotRaisedError) Is(target error) bool { return target == ErrNotRaised }

// InvalidError says which input is malformed. Its text never holds a secret.
type InvalidError struct {
	Field  string // "resource", "token", "seal", "ttl", …
	Reason string // continues the sentence that the field starts
}

func (e *InvalidError) Error() string { return e.Field + " " + e.Reason }

// Is matches [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

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
