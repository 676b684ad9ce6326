package client

import "time"

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

// timing is what a reply says of the lease's time. Elapsed is how long the
// gateway took until it wrote the reply, Valid what remained at that moment.
// The request was sent before the gateway started to count, so send time +
// Elapsed + Valid is never later than the true end.
type timing struct {
	Elapsed int64 `json:"elapsed_ms"`
	Valid   int64 `json:"valid_ms"`
}

func (t timing) deadline(sent time.Time) Deadline {
	return DeadlineAfter(sent, time.Duration(t.Elapsed+t.Valid)*time.Millisecond)
}
