package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// SQLSTATEs of the schema objects; the migration documents them.
const (
	stateNoBucket       = "ZO001"
	statePrecondition   = "ZO002"
	stateNoKey          = "ZO003"
	stateGivenUp        = "ZO004"
	stateBucketNotEmpty = "ZO005"
	stateOtherRequest   = "ZO006"
	stateRuleInUse      = "ZO007"
	stateNoUpload       = "ZO008"
	stateNoVersion      = "ZO009"
	stateRetained       = "ZO012"
	stateRetention      = "ZO013"

	stateNotText      = "22021" // character_not_in_repertoire
	stateUntranslated = "22P05" // untranslatable_character, a NUL in JSON
)

// Refusals of PostgreSQL, and missing things.
var (
	ErrNoBucket       = errors.New("no such bucket")
	ErrNoKey          = errors.New("no such key")
	ErrNoVersion      = errors.New("no such version") // or no longer there
	ErrNoUpload       = errors.New("no such upload")
	ErrVersionID      = errors.New("no version has such an id")
	ErrBucketNotEmpty = errors.New("the bucket is not empty")
	ErrRuleInUse      = errors.New("the bucket's rule can't change while it holds objects") // written under another rule
	ErrRetained       = errors.New("the bucket has a longer write-once retention")
	ErrOtherRequest   = errors.New("the invocation id was used for another request on the same key")
)

// Errors of uploads.
var (
	ErrGivenUp      = errors.New("the upload exceeded its time limit and was discarded")
	ErrIncomplete   = errors.New("the body's length differs from the announced one")
	ErrStoreFailed  = errors.New("blob store failed")                                                   // the blob store failed, not the client's connection
	ErrDoubted      = errors.New("PostgreSQL's identity is not verified: it may have forgotten fences") // nothing was changed
	ErrDatabaseAway = errors.New("PostgreSQL did not answer")                                           // or refused for now, see [BusyError]; nothing was changed
)

// PreconditionError reports that the current version does not match the write's condition.
type PreconditionError struct{ Condition string } // the header's name, from PostgreSQL

func (e *PreconditionError) Error() string { return "the condition " + e.Condition + " does not hold" }

// MarkerError reports that a deletion marker stands in place of the requested object.
type MarkerError struct {
	ID    blob.ID
	Named bool // requested by its id; else it hides the key
}

func (e *MarkerError) Error() string { return "a deletion, " + e.ID.String() + ", stands there" }

// Unwrap returns [ErrNoKey] for a hidden key.
func (e *MarkerError) Unwrap() error {
	if e.Named {
		return nil
	}
	return ErrNoKey
}

// NoVersionError is [ErrNoVersion] for a read that names a version.
type NoVersionError struct{ Key, ID string }

func (e *NoVersionError) Error() string {
	return fmt.Sprintf("no such version: %s of %q", e.ID, e.Key)
}

func (e *NoVersionError) Unwrap() error { return ErrNoVersion }

// NoUploadError is [ErrNoUpload] for a request that names an upload.
type NoUploadError struct{ ID string }

func (e *NoUploadError) Error() string { return fmt.Sprintf("no such upload: %q", e.ID) }

func (e *NoUploadError) Unwrap() error { return ErrNoUpload }

// RetainedError reports that the object is write-once and its retention has not ended. Nothing was changed.
type RetainedError struct{ Until string } // RFC 3339, UTC

func (e *RetainedError) Error() string {
	return "the object is written once: it can't change before " + e.Until
}

// TextError reports a name or value that PostgreSQL cannot store: it is not UTF-8, or contains NUL.
type TextError struct{ What string }

func (e *TextError) Error() string {
	return "InvalidArgument: The " + e.What + " is not UTF-8 text without NUL."
}

// KeyTooLongError reports a key longer than [MaxKey] bytes.
type KeyTooLongError struct{ Size int }

func (e *KeyTooLongError) Error() string { return "KeyTooLongError: Your key is too long" }

// TooLargeError reports a blob larger than the store accepts.
type TooLargeError struct{ Size int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%d bytes are more than a blob may have", e.Size)
}

// BodyError reports that reading the client's body failed. Nothing was stored.
type BodyError struct{ Cause error }

func (e *BodyError) Error() string { return "read the body: " + e.Cause.Error() }

func (e *BodyError) Unwrap() error { return e.Cause }

// BusyError is an [ErrDatabaseAway] of a PostgreSQL that answered but cannot serve the request now. Nothing was
// changed.
type BusyError struct{ State string } // the SQLSTATE

func (e *BusyError) Error() string { return "PostgreSQL refused for now: SQLSTATE " + e.State }

func (e *BusyError) Is(target error) bool { return target == ErrDatabaseAway }

// away wraps a cause in [ErrDatabaseAway].
func away(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && refused(err) {
		return fmt.Errorf("%w: %w", &BusyError{State: pgErr.Code}, err)
	}
	return fmt.Errorf("%w: %w", ErrDatabaseAway, err)
}

// refused reports whether PostgreSQL itself refused the statement, so that it certainly changed nothing. An error that
// ends the session does not count: it can arrive between a commit and its acknowledgement.
func refused(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && severity(pgErr) == "ERROR"
}

// inDoubt reports whether a statement that failed may have changed something.
func inDoubt(err error) bool { return err != nil && !refused(err) && !pgconn.SafeToRetry(err) }

func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity
}

// transient reports whether a retry may succeed: after a serialization failure, a deadlock, while a server starts or
// stops, or after a migration that changed the statement's result type while it ran.
func transient(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pgErr.Code, "40") || strings.HasPrefix(pgErr.Code, "53") || strings.HasPrefix(pgErr.Code, "57P") || redefined(pgErr))
}

// redefined checks which PostgreSQL function raised the error: the SQLSTATEs 42804 and 0A000 have other causes, too.
func redefined(err *pgconn.PgError) bool {
	return err.Routine == "tupledesc_match" || err.Routine == "RevalidateCachedQuery"
}

// translate turns PostgreSQL's refusals into this package's errors; other errors stay unchanged.
func translate(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pgErr.Code {
	case statePrecondition:
		return &PreconditionError{Condition: pgErr.Detail}
	case stateNoKey:
		return ErrNoKey
	case stateBucketNotEmpty:
		return ErrBucketNotEmpty
	case stateNoBucket:
		return ErrNoBucket
	case stateGivenUp:
		return ErrGivenUp
	case stateOtherRequest:
		return ErrOtherRequest
	case stateNoVersion:
		return ErrNoVersion
	case stateNoUpload:
		return ErrNoUpload
	case stateNotText, stateUntranslated:
		return &TextError{What: "request"}
	case stateRuleInUse:
		return ErrRuleInUse
	case stateRetained:
		return &RetainedError{Until: pgErr.Detail}
	case stateRetention:
		return ErrRetained
	}
	return fenceError(pgErr)
}

// fenceError returns a refusal by the fence, with the facts from the error's DETAIL.
func fenceError(pgErr *pgconn.PgError) error {
	var d struct {
		Resource, Needed    string
		Presented, Recorded json.Number
		Ended               bool
	}
	_ = json.Unmarshal([]byte(pgErr.Detail), &d) // missing facts stay empty
	token := func(n json.Number) fence.Token { i, _ := n.Int64(); return fence.Token(i) }
	switch pgErr.Code {
	case "ZF001":
		return &fence.StaleError{Resource: d.Resource, Presented: token(d.Presented), Recorded: token(d.Recorded), Ended: d.Ended}
	case "ZF002":
		return &fence.NoGrantError{Needed: d.Needed}
	case "ZF003":
		return &fence.NeverIssuedError{Resource: d.Resource, Presented: token(d.Presented), Recorded: token(d.Recorded)}
	case "ZF004":
		return &fence.WrongResourceError{Resource: d.Resource, Needed: d.Needed}
	case "ZF005":
		return &fence.UndrainedError{Resource: d.Resource, Token: token(d.Recorded), Detail: pgErr.Message}
	}
	return pgErr
}
