package lock

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Metrics hears what happens, for histograms and counters. Its methods are
// called from many goroutines and must not block.
type Metrics interface {
	// Acquired: after how long, with a quorum of how many granting nodes.
	Acquired(waited time.Duration, granted int)
	// Failed: an operation ("acquire", "extend", "release") ended with a cause:
	// "held", "no_quorum", "lost", "invalid", "arm", "context", "other".
	Failed(operation, cause string)
	// Ended: a lease is over after how long; lost, or released.
	Ended(held time.Duration, lost bool)
	// Renewed: a lease was extended.
	Renewed()
	// Slow: a node did not answer within the node timeout.
	Slow(node string)
}

type noMetrics struct{}

func (noMetrics) Acquired(time.Duration, int) {}
func (noMetrics) Failed(string, string)       {}
func (noMetrics) Ended(time.Duration, bool)   {}
func (noMetrics) Renewed()                    {}
func (noMetrics) Slow(string)                 {}

// cause is the label of an error.
func cause(err error) string {
	switch {
	case errors.Is(err, fence.ErrInvalid):
		return "invalid"
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, ErrNoQuorum):
		return "no_quorum"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, fence.ErrUnknown), errors.Is(err, fence.ErrNotRaised), errors.Is(err, fence.ErrUndrained):
		return "arm"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "context"
	}
	return "other"
}
