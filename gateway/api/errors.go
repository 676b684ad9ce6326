package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// What the implementations of this package's interfaces report.
var (
	// ErrNotFound: there is no such thing.
	ErrNotFound = errors.New("not found")
	// ErrNotImplemented: this gateway is not configured to do that.
	ErrNotImplemented = errors.New("not implemented")
	// ErrKeyUsed: an acquisition with this Idempotency-Key armed the resource last, and its lease is over.
	ErrKeyUsed = errors.New("the lease that this Idempotency-Key acquired is over")
	// ErrConflict: the thing's state does not allow it.
	ErrConflict = errors.New("conflict")
)

// leaseError says which part a source of leases, or arming, failed for. ctx is the
// request's; resource is "" where it asks for several: then the error names it.
func leaseError(ctx context.Context, resource string, err error) error {
	var held *leasing.HeldError
	var unavailable *UnavailableError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case errors.Is(err, ErrKeyUsed):
		return ErrKeyUsed
	case errors.As(err, &unavailable): // arming said so itself
		return unavailable
	case errors.As(err, &held):
		return &leasing.HeldError{Resource: cmp.Or(resource, held.Resource), Holder: held.Holder, RetryAfter: held.RetryAfter}
	case errors.Is(err, leasing.ErrHeld): // overtaken by another acquisition
		if low, ok := errors.AsType[*fence.NotRaisedError](err); ok {
			resource = cmp.Or(resource, low.Resource)
		}
		return &leasing.HeldError{Resource: resource}
	case errors.Is(err, fence.ErrInvalid), errors.Is(err, fence.ErrUndrained):
		return err
	case errors.Is(err, leasing.ErrUnavailable), errors.Is(err, leasing.ErrClosed):
		return &UnavailableError{Part: wire.PartRedis, Cause: err}
	case errors.Is(err, leasing.ErrLost):
		return err
	}
	return &UnavailableError{Part: wire.PartPostgres, Cause: err} // what is left comes from arming
}

// UnavailableError says which part can't be reached. Nothing was done.
type UnavailableError struct {
	Part  string // [wire.PartPostgres], [wire.PartRedis] or [wire.PartGateway]
	Cause error  // for the log
}

func (e *UnavailableError) Error() string {
	if e.Cause == nil {
		return e.Part + " is unavailable"
	}
	return fmt.Sprintf("%s is unavailable: %v", e.Part, e.Cause)
}

// detail is what a client reads: no address, and no cause but one that has words
// for clients.
func (e *UnavailableError) detail() string {
	var told interface{ Tell() string }
	if errors.As(e.Cause, &told) {
		return told.Tell()
	}
	switch e.Part {
	case wire.PartPostgres:
		return "PostgreSQL can't serve the gateway now."
	case wire.PartRedis:
		return "No quorum of Redis nodes serves the gateway now."
	}
	return "The " + e.Part + " can't serve now."
}

func (e *UnavailableError) Unwrap() error { return e.Cause }

// defaultRetry is when a part that can't be reached may be asked again, where nobody knows.
const defaultRetry = time.Second

// retryAfter is when asking again may be of use.
func (e *UnavailableError) retryAfter() time.Duration {
	var told interface{ Left() time.Duration }
	if errors.As(e.Cause, &told) && told.Left() > 0 {
		return told.Left()
	}
	return defaultRetry
}

// DegradedError is a [Check]'s where the part serves, but for what is said here.
type DegradedError struct {
	What  string // anybody may read it
	Cause error  // for the log
}

func (e *DegradedError) Error() string { return fmt.Sprintf("%s: %v", e.What, e.Cause) }
func (e *DegradedError) Unwrap() error { return e.Cause }

// StatementError says which statement failed. Nothing was committed.
type StatementError struct {
	Index    int // from 0; negative: COMMIT itself, as with deferred constraints
	SQLState string
	Message  string
	Detail   string
	Hint     string
	Position int   // in the statement's text, in characters from 1; 0: not known
	Cause    error // where the fence refused: [fence.StaleError] and its kin

	Operation, Table string // of the write that the fence refused; "": not known
}

func (e *StatementError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("COMMIT failed: %s (SQLSTATE %s)", e.Message, e.SQLState)
	}
	return fmt.Sprintf("statement %d failed: %s (SQLSTATE %s)", e.Index, e.Message, e.SQLState)
}

func (e *StatementError) Unwrap() error { return e.Cause }

// TooLargeError says what is over which limit. Nothing was done.
type TooLargeError struct {
	What  string
	Limit int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s is over the limit of %d bytes", e.What, e.Limit)
}
