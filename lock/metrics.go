package lock

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Metrics hears what happens, for histograms and counters. Its methods are
// called from many goroutines and must not block. See [Tracer] for single steps.
type Metrics interface {
	// Acquired: after how long from the call, waiting and arming included, and how
	// many nodes had granted when it was decided: a quorum at least.
	Acquired(waited time.Duration, granted int)
	// Failed: an operation ("acquire", "extend", "release") ended with a cause:
	// "held", "no_quorum", "lost", "invalid", "arm", "context", "other".
	Failed(operation, cause string)
	// Ended: a [Lease] is over, so long after it was acquired: lost (at its deadline,
	// or found gone before), or released.
	Ended(held time.Duration, lost bool)
	// Renewed: a lease was extended, by a keep-alive, by hand or by its reference.
	Renewed()
	// Slow: a step ended without the answer of this node, at the node timeout. A
	// node that is slower than the quorum delays nothing and is not told of.
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
