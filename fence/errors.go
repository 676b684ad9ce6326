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
