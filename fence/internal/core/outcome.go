package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Resolved replaces err, if it says that a COMMIT was not answered, by the transaction's outcome. It asks for up to
// patience, even if ctx has ended. A patience of 0 returns err unchanged.
func Resolved(ctx context.Context, patience time.Duration, err error, outcome func(context.Context, error) error) error {
	if patience <= 0 || !errors.Is(err, fence.ErrUnknown) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return outcome(ctx, err)
}

// ErrClosed says that an outcome can't be asked on a connection or pool any more.
var ErrClosed = errors.New("the connection or pool is closed: ask over an open pool")

// Outcome asks, until ctx ends, for the outcome of a transaction whose COMMIT was not answered. It keeps asking while
// PostgreSQL restarts and while the transaction still runs. ask asks once; if its error is [ErrClosed], or final reports
// true for it, there is no retry.
//
// nil: committed. [fence.ErrNotCommitted]: rolled back. Otherwise err itself: the outcome can't be determined any
// more, or was not determined before ctx ended.
func Outcome(
	ctx context.Context, err error, ask func(context.Context, *fence.UnknownError) (status string, err error), final func(error) bool,
) error {
	var unknown *fence.UnknownError
	if !errors.As(err, &unknown) || unknown.XID == "" {
		return err
	}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (its outcome was not found: %w)", err, ctx.Err())
		case <-wait.C:
		}
		status, askErr := ask(ctx, unknown)
		switch {
		case askErr != nil && ctx.Err() == nil && (errors.Is(askErr, ErrClosed) || final(askErr)):
			return fmt.Errorf("%w (its outcome was not found: %v)", err, askErr) //nolint:errorlint // a refusal of the question is not the transaction's
		case askErr != nil, status == "in progress":
			wait.Reset(pause)
		case status == "committed":
			return nil
		case status == "aborted":
			return fmt.Errorf("%w: %w", fence.ErrNotCommitted, unknown.Err)
		default:
			return err
		}
	}
}
