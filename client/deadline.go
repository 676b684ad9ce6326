package client

import (
	"time"

	"github.com/fencegate/fencegate/client/wire"
)

// clock reads the wall clock; nil is this machine's. The monotonic clock is always that of Go's timers.
type clock struct {
	wall func(t time.Time) time.Time // the wall clock at t
}

func (c *clock) wallAt(t time.Time) time.Time {
	if c == nil {
		return t.Round(0)
	}
	return c.wall(t)
}

// Deadline is the instant up to which a lease is confirmed. It uses two clocks: the monotonic one, which setting the
// wall clock back cannot lengthen, and the wall clock, because on Linux the monotonic one stops while the machine is
// suspended. The lease ends at whichever runs out first.
type Deadline struct {
	start time.Time // with a monotonic reading
	lasts time.Duration
	clock *clock

	final bool
}

// Final reports whether no renewal makes the lease last longer, because it has reached the gateway's limit for
// holding a lease (serve --max-lease).
func (d Deadline) Final() bool { return d.final }

// DeadlineAfter is the deadline d after start, which must carry a monotonic reading.
func DeadlineAfter(start time.Time, d time.Duration) Deadline {
	return Deadline{start: start, lasts: d}
}

// Remaining is how long the lease is still confirmed. It is zero or less if the lease is over.
func (d Deadline) Remaining() time.Duration {
	t := time.Now()
	return d.lasts - max(t.Sub(d.start), d.clock.wallAt(t).Sub(d.clock.wallAt(d.start)))
}

// deadlineOf computes the deadline from a reply's timing. [wire.Timing] explains why it is never later than the true
// end.
func (c *clock) deadlineOf(t wire.Timing, sent time.Time) Deadline {
	d := DeadlineAfter(sent, time.Duration(t.ElapsedMS+t.ValidMS)*time.Millisecond)
	d.final, d.clock = t.Final, c
	return d
}
