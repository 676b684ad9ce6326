package client

import (
	"time"

	"github.com/fencegate/fencegate/client/wire"
)

// Deadline is the instant up to which a lease is confirmed. It holds two clocks:
// the monotonic one, which a wall clock set back cannot lengthen, and the wall
// clock, because on Linux the monotonic one stands still while the machine
// sleeps. Whichever runs out first ends the lease.
type Deadline struct {
	mono time.Time
	wall time.Time
}

// DeadlineAfter is the deadline d after start, which must carry a monotonic reading.
func DeadlineAfter(start time.Time, d time.Duration) Deadline {
	return Deadline{mono: start.Add(d), wall: start.Round(0).Add(d)}
}

// Remaining is how long the lease is still confirmed; zero or less when it is over.
func (d Deadline) Remaining() time.Duration {
	t := time.Now()
	return min(d.mono.Sub(t), d.wall.Sub(t.Round(0)))
}

// deadlineOf reads what a reply says of the lease's time: [wire.Timing] says why the
// sum is never later than the true end.
func deadlineOf(t wire.Timing, sent time.Time) Deadline {
	return DeadlineAfter(sent, time.Duration(t.ElapsedMS+t.ValidMS)*time.Millisecond)
}
