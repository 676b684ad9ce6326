package s3fence

import (
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

// What publishing refuses beside the fence, whose refusals are those of package
// fence. Each fails the transaction.
var (
	// ErrPublished: the stage was published before, by an earlier attempt that was
	// committed or by this very transaction. Its rows must not be written again.
	ErrPublished = errors.New("the upload was published already")
	// ErrGone: the stage was given up, because it was too old, or never was. Stage
	// the upload again. At REPEATABLE READ and SERIALIZABLE also a stage that was
	// made after the transaction's first statement.
	ErrGone = errors.New("the staged upload is gone")
	// ErrPrecondition: the object's condition does not hold, see [IfMatch] and [IfNoneMatch].
	ErrPrecondition = errors.New("the object's precondition failed")
	// ErrNoBucket: the bucket was deleted since.
	ErrNoBucket = errors.New("no such bucket")
)

// SQLSTATEs of the schema objects; the migrations say what they mean.
var states = map[string]error{
	"ZO001": ErrNoBucket, "ZO002": ErrPrecondition, "ZO003": ErrPrecondition, "ZO004": ErrGone, "ZO010": ErrGone, "ZO011": ErrPublished,
}

// translate adds what an error of PostgreSQL means; its own text stays.
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

// StageError says that the gateway refused to stage an upload. errors.Is finds
// the fence's refusals in it.
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
			return c.Err != fence.ErrUndrained // whose code is that of any server that is away
		}
	}
	return false
}
