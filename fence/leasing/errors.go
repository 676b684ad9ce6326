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

// Retryable reports whether the same call may succeed later: the resource was held, or the source was unavailable.
// After [ErrLost], acquire again and start from what the newer holder wrote.
func Retryable(err error) bool {
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrUnavailable)
}
