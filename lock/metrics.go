package lock

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Metrics receives events for histograms and counters. Its methods are called concurrently and must not block. See
// [Tracer] for single steps.
type Metrics interface {
	// Metrics are the events of every source. The causes of failures are "held", "no_quorum", "lost", "invalid", "arm",
	// "context" and "other".
	leasing.Metrics

	// Ended reports that a [Lease] is over, and the time since its acquisition. lost: it reached its deadline or was
	// found gone; otherwise it was released.
	Ended(held time.Duration, lost bool)
	// Slow reports that a step ended at the node timeout without this node's answer. A node that is merely slower
	// than the quorum delays nothing and is not reported.
	Slow(node string)
}

type noMetrics struct{}

func (noMetrics) Acquired(time.Duration, int) {}
func (noMetrics) Failed(string, string)       {}
func (noMetrics) Ended(time.Duration, bool)   {}
func (noMetrics) Renewed()                    {}
func (noMetrics) Slow(string)                 {}

// cause is the label value of an error.
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
