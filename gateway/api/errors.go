package api

import (
	"errors"
	"fmt"
	"time"
)

// What the implementations of this package's interfaces report.
var (
	// ErrLeaseLost: the lease is over, released, or was renewed for as long as it may be.
	ErrLeaseLost = errors.New("the lease is lost")
	// ErrNotFound: there is no such thing.
	ErrNotFound = errors.New("not found")
	// ErrNotImplemented: this gateway is not configured to do that.
	ErrNotImplemented = errors.New("not implemented")
	// ErrConflict: the thing's state does not allow it.
	ErrConflict = errors.New("conflict")
)

// HeldError says that another holder has the resource.
type HeldError struct {
	Resource   string
	Holder     string        // its name for people; "" where it is not known
	RetryAfter time.Duration // when it may be free at the latest; 0: not known
}

func (e *HeldError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("%q is held by another", e.Resource)
	}
	return fmt.Sprintf("%q is held by %q", e.Resource, e.Holder)
}

// UnavailableError says which part can't be reached. Nothing was done.
type UnavailableError struct {
	Part  string // "postgresql", "redis" or "gateway"
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
	case "postgresql":
		return "PostgreSQL can't serve the gateway now."
	case "redis":
		return "No quorum of Redis nodes serves the gateway now."
	}
	return "The " + e.Part + " can't serve now."
}

func (e *UnavailableError) Unwrap() error { return e.Cause }

// StatementError says which statement failed. Nothing was committed.
type StatementError struct {
	Index    int // from 0; negative: COMMIT itself, as with deferred constraints
	SQLState string
	Message  string
	Detail   string
	Hint     string
	Position int   // in the statement's text, in characters from 1; 0: not known
	Cause    error // where the fence refused: [fence.StaleError] and its kin
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
