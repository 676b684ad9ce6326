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

	final bool
}

// Final reports whether no renewal makes the lease last longer: the gateway has a cap on how
// long one may be held (serve --max-lease), and this is it.
func (d Deadline) Final() bool { return d.final }

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
	d := DeadlineAfter(sent, time.Duration(t.ElapsedMS+t.ValidMS)*time.Millisecond)
	d.final = t.Final
	return d
}
