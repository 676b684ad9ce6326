package client

import (
	"time"

	"github.com/fencegate/fencegate/client/wire"
)

// Deadline is the instant up to which a lease is confirmed. It uses two clocks: the monotonic one, which setting the
// wall clock back cannot lengthen, and the wall clock, because on Linux the monotonic one stops while the machine is
// suspended. The lease ends at whichever runs out first.
type Deadline struct {
	mono time.Time
	wall time.Time

	final bool
}

// Final reports whether no renewal makes the lease last longer, because it has reached the gateway's limit for
// holding a lease (serve --max-lease).
func (d Deadline) Final() bool { return d.final }

// DeadlineAfter is the deadline d after start, which must carry a monotonic reading.
func DeadlineAfter(start time.Time, d time.Duration) Deadline {
	return Deadline{mono: start.Add(d), wall: start.Round(0).Add(d)}
}

// Remaining is how long the lease is still confirmed. It is zero or less if the lease is over.
func (d Deadline) Remaining() time.Duration {
	t := time.Now()
	return min(d.mono.Sub(t), d.wall.Sub(t.Round(0)))
}

// deadlineOf computes the deadline from a reply's timing. [wire.Timing] explains why it is never later than the true
// end.
func deadlineOf(t wire.Timing, sent time.Time) Deadline {
	d := DeadlineAfter(sent, time.Duration(t.ElapsedMS+t.ValidMS)*time.Millisecond)
	d.final = t.Final
	return d
}
