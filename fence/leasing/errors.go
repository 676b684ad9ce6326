package leasing

import (
	"errors"
	"fmt"
	"time"
)

// Sentinels for errors.Is. Malformed input is a [*fence.InvalidError].
var (
	// ErrHeld: another holder has the resource. Nothing was acquired.
	ErrHeld = errors.New("resource is held by another")
	// ErrLost: the lease is over. Its deadline has passed, it was released, or another holder has the resource.
	ErrLost = errors.New("the lease is lost")
	// ErrUnavailable: too few of the source's servers answered. Nothing was acquired.
	ErrUnavailable = errors.New("leases are unavailable")
	// ErrClosed: the source is closed.
	ErrClosed = errors.New("source of leases is closed")
)

// HeldError says who holds a resource and when to try again.
type HeldError struct {
	Resource   string
	Holder     string        // display name; "" if not known
	RetryAfter time.Duration // until the lease ends unless it is extended; 0 if not known
}

func (e *HeldError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("%q is held by another", e.Resource)
	}
	return fmt.Sprintf("%q is held by %q", e.Resource, e.Holder)
}

// Is matches [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// UnavailableError names the part that cannot be reached. It is an [ErrUnavailable]. Nothing was done, unless Cause is
// [fence.ErrUnknown].
type UnavailableError struct {
	Part  string // a name for clients: [PartPostgres], [PartRedis], …
	Cause error  // for the log; it may have a text for clients, Tell() string, and a time to wait, Left() time.Duration
}

// Parts of a source of leases, as clients see them.
const (
	PartPostgres = "postgresql"
	PartRedis    = "redis"
)

func (e *UnavailableError) Error() string {
	if e.Cause == nil {
		return e.Part + " is unavailable"
	}
	return fmt.Sprintf("%s is unavailable: %v", e.Part, e.Cause)
}

// Is matches [ErrUnavailable].
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Cause }

// Retryable reports whether the same call may succeed later: the resource was held, or the source was unavailable.
// After [ErrLost], acquire again and start from what the newer holder wrote.
func Retryable(err error) bool {
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrUnavailable)
}
