package s3fence

import (
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

// Errors of publishing, in addition to the refusals in package fence. Each fails the transaction.
var (
	// ErrPublished: the stage was published before, by an earlier committed attempt or by this transaction. Its rows
	// must not be written again.
	ErrPublished = errors.New("the upload was published already")
	// ErrGone: the stage was discarded because it was too old, or it never existed. Stage the upload again. At
	// REPEATABLE READ and SERIALIZABLE, a stage created after the transaction's first statement is not found either.
	ErrGone = errors.New("the staged upload is gone")
	// ErrPrecondition: the object's condition does not hold, see [IfMatch] and [IfNoneMatch].
	ErrPrecondition = errors.New("the object's precondition failed")
	// ErrNoBucket: the bucket has been deleted.
	ErrNoBucket = errors.New("no such bucket")
)

// SQLSTATEs of the schema objects. The migrations document them.
var states = map[string]error{
	"ZO001": ErrNoBucket, "ZO002": ErrPrecondition, "ZO003": ErrPrecondition, "ZO004": ErrGone, "ZO010": ErrGone, "ZO011": ErrPublished,
}

// translate adds the matching sentinel to an error of PostgreSQL and keeps its text.
func translate(err error) error {
	state, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if !ok {
		return err
	}
	if meaning := states[state.SQLState()]; meaning != nil {
		return fmt.Errorf("%w: %w", meaning, err)
	}
	return sqlfence.Translate(pgfence.Translate(err))
}

// StageError says that the gateway refused to stage an upload. errors.Is matches the fence's refusals.
type StageError struct {
	Status  int    // of HTTP
	Code    string // of S3: StaleFencingToken, NoSuchBucket, …
	Message string
}

func (e *StageError) Error() string { return fmt.Sprintf("%s (%d): %s", e.Code, e.Status, e.Message) }

// Is matches the fence's sentinel of the same S3 code and status.
func (e *StageError) Is(target error) bool {
	for _, c := range fence.Codes {
		if c.S3Code == e.Code && c.Err == target {
			return c.Err != fence.ErrUndrained // its code is the general one of an unavailable server
		}
	}
	return false
}
