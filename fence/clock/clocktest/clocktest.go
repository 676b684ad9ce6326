// Package clocktest has a clock that a test suspends and sets, also inside a bubble of testing/synctest.
package clocktest

import (
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
)

// Clock is a machine's clock. It is safe for concurrent use.
type Clock struct {
	*clock.Clock

	suspended, set atomic.Int64 // nanoseconds
}

// New returns a clock that runs as this machine's, until it is suspended or set.
func New() *Clock {
	c, origin := &Clock{}, time.Now()
	c.Clock = clock.Of(
		func(t time.Time) int64 { return t.UnixNano() + c.suspended.Load() + c.set.Load() },
		func() time.Duration { return time.Since(origin) + time.Duration(c.suspended.Load()) },
	)
	return c
}

// Suspend lets time pass as it does for a machine that is suspended: the monotonic clock and timers stand still.
func (c *Clock) Suspend(d time.Duration) { c.suspended.Add(int64(d)) }

// Set moves the wall clock by d: nobody was suspended.
func (c *Clock) Set(d time.Duration) { c.set.Add(int64(d)) }
