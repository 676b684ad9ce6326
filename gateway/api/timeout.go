package api

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// queryTimeout bounds a query that the API makes for people. PostgreSQL may hang, and connections may be dead without a
// sign.
const queryTimeout = 3 * time.Second

// errNoAnswer is the cause of a context that [queryContext] or [actContext] ended. It distinguishes that from a client
// that has gone.
var errNoAnswer = errors.New("no answer in time")

// queryContext returns a context for one query or for a few.
func queryContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, queryTimeout, errNoAnswer)
}

// actContext returns a context for an act that is carried out even if the client disconnects.
func actContext(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), timeout, errNoAnswer)
}

// timeoutOf names the part that did not answer in time. It keeps [fence.ErrUnknown].
func timeoutOf(ctx context.Context, part string, err error) error {
	if err == nil || errors.Is(err, fence.ErrUnknown) || !errors.Is(context.Cause(ctx), errNoAnswer) {
		return err
	}
	return &leasing.UnavailableError{Part: part, Cause: &noAnswerError{part, err}}
}

// lockTimeout is timeoutOf for the lock: its error names its part, if that is not Redis.
func lockTimeout(ctx context.Context, err error) error {
	part := wire.PartRedis
	if away, ok := errors.AsType[*leasing.UnavailableError](err); ok {
		part = away.Part
	}
	return timeoutOf(ctx, part, errors.Join(ctx.Err(), err))
}

type noAnswerError struct {
	part  string
	cause error
}

func (e *noAnswerError) Error() string { return errNoAnswer.Error() + ": " + e.cause.Error() }
func (e *noAnswerError) Unwrap() error { return e.cause }

// Tell is the text for clients.
func (e *noAnswerError) Tell() string {
	if e.part == wire.PartPostgres {
		return "PostgreSQL did not answer."
	}
	return "The Redis nodes did not answer."
}
