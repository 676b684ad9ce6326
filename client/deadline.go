package client

import (
	"time"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/wire"
)

// Deadline is the instant up to which a lease is confirmed.
type Deadline struct {
	clock.Instant

	// Final says that no renewal makes the lease last longer, because it has reached the gateway's limit for holding a
	// lease (serve --max-lease).
	Final bool
}

// deadlineOf computes the deadline from a reply's timing. [wire.Timing] explains why it is never later than the true
// end.
func deadlineOf(t wire.Timing, sent clock.Instant) Deadline {
	return Deadline{sent.Add(time.Duration(t.ElapsedMS+t.ValidMS) * time.Millisecond), t.Final}
}
