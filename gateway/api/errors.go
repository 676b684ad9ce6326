package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// Errors of the implementations of this package's interfaces.
var (
	// ErrNotFound reports that a thing does not exist.
	ErrNotFound = errors.New("not found")
	// ErrNotImplemented reports that this gateway is not configured for the request.
	ErrNotImplemented = errors.New("not implemented")
	// ErrKeyUsed reports that an acquisition with this Idempotency-Key armed the resource last, and its lease is over.
	ErrKeyUsed = errors.New("the lease that this Idempotency-Key acquired is over")
	// ErrConflict reports that the state of a thing does not allow the request.
	ErrConflict = errors.New("conflict")
)

// leaseError names the part for which a source of leases, or arming, failed. ctx is the request's.
func leaseError(ctx context.Context, err error) error {
	var held *leasing.HeldError
	var unavailable *leasing.UnavailableError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case errors.Is(err, ErrKeyUsed):
		return ErrKeyUsed
	case errors.As(err, &unavailable):
		return unavailable
	case errors.As(err, &held):
		return held
	case errors.Is(err, leasing.ErrHeld): // superseded by other acquisitions
		held = &leasing.HeldError{}
		if low, ok := errors.AsType[*fence.NotRaisedError](err); ok {
			held.Resource = low.Resource
		}
		return held
	case errors.Is(err, fence.ErrInvalid), errors.Is(err, fence.ErrUndrained):
		return err
	case errors.Is(err, leasing.ErrClosed):
		return &leasing.UnavailableError{Part: wire.PartGateway, Cause: err}
	case errors.Is(err, leasing.ErrUnavailable):
		return &leasing.UnavailableError{Part: wire.PartRedis, Cause: err}
	case errors.Is(err, leasing.ErrLost):
		return err
	}
	return &leasing.UnavailableError{Part: wire.PartPostgres, Cause: err} // the rest comes from arming
}

// halfDoneError is a [*leasing.UnavailableError] of a request that may have done something.
type halfDoneError struct {
	*leasing.UnavailableError

	hint string // for clients: what was done, and what to do
}

func (e *halfDoneError) Unwrap() error { return e.UnavailableError }

// halfDone adds a hint to a [*leasing.UnavailableError].
func halfDone(err error, hint string) error {
	if away, ok := errors.AsType[*leasing.UnavailableError](err); ok {
		return &halfDoneError{away, hint}
	}
	return err
}

// unavailableDetail is the text for clients. It contains no address, and a cause only if that has a text for clients.
func unavailableDetail(away *leasing.UnavailableError) string {
	var public interface{ Tell() string }
	if errors.As(away.Cause, &public) {
		return public.Tell()
	}
	switch away.Part {
	case wire.PartPostgres:
		return "PostgreSQL can't serve the gateway now."
	case wire.PartRedis:
		return "No quorum of Redis nodes serves the gateway now."
	}
	return "The " + away.Part + " can't serve now."
}

// DegradedError is a [Check]'s error for a part that serves with something missing.
type DegradedError struct {
	What  string // public
	Cause error  // for the log; nil: none
}

func (e *DegradedError) Error() string {
	if e.Cause == nil {
		return e.What
	}
	return fmt.Sprintf("%s: %v", e.What, e.Cause)
}

func (e *DegradedError) Unwrap() error { return e.Cause }

// StatementError names the statement that failed. Nothing was committed.
type StatementError struct {
	Index    int // from 0; negative: COMMIT itself, as with deferred constraints
	SQLState string
	Message  string
	Detail   string
	Hint     string
	Position int   // in the statement's text, in characters from 1; 0: not known
	Cause    error // for a refusal of the fence a [fence.StaleError] or similar

	Operation, Table string // of the write that the fence refused; "": not known
}

func (e *StatementError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("COMMIT failed: %s (SQLSTATE %s)", e.Message, e.SQLState)
	}
	return fmt.Sprintf("statement %d failed: %s (SQLSTATE %s)", e.Index, e.Message, e.SQLState)
}

func (e *StatementError) Unwrap() error { return e.Cause }

// TooLargeError says what exceeds which limit. Nothing was done.
type TooLargeError struct {
	What  string
	Limit int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s is over the limit of %d bytes", e.What, e.Limit)
}
