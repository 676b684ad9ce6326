// Package clock tells when leases end. A deadline is an [Instant] taken before the request for the lease was sent, on a
// clock that also counts the time for which the machine was suspended: the servers run on during that time.
//
// The guarantee, on Linux: an Instant has passed no later than that much time after it was taken, whatever is done to the
// wall clock, and whether the machine was suspended or not. Other systems have no supported clock that runs through a
// suspension; there the wall clock stands in for it, so setting that one back during a suspension delays the end, and
// setting it forward brings the end forward.
package clock

import (
	"context"
	"sync/atomic"
	"time"
)

// Clock reads two clocks: the monotonic one of Go's timers, and one that also runs while the machine is suspended. It is
// safe for concurrent use.
//
// Reading the second one takes a system call; the others do not. A suspension also moves the wall clock against the
// monotonic one, so the second is read only after these two have moved apart by half a millisecond, which is well
// below the safety margin of any deadline.
type Clock struct {
	origin time.Time
	wall   func(t time.Time) int64 // the wall clock at t, in nanoseconds
	boot   func() time.Duration    // CLOCK_BOOTTIME
	last   atomic.Pointer[ahead]
}

// apart is how far the wall and the monotonic clock may move apart before the boot clock is read.
const apart = 500 * time.Microsecond

// ahead is how far the other clocks were ahead of the monotonic one.
type ahead struct{ wall, boot time.Duration }

// New is this machine's clock.
func New() *Clock { return Of(time.Time.UnixNano, readBoot) }

// Of is a clock of a wall clock at a given time, in nanoseconds, and of a clock that runs through suspensions. It is for
// tests: package clocktest has such a clock.
func Of(wall func(t time.Time) int64, boot func() time.Duration) *Clock {
	return &Clock{origin: time.Now(), wall: wall, boot: boot}
}

// Now is the present moment.
func (c *Clock) Now() Instant { return c.At(time.Now()) }

// At is the moment t, which was read from [time.Now] just now.
func (c *Clock) At(t time.Time) Instant { return Instant{mono: t, boot: c.bootAt(t), of: c} }

// bootAt is the boot clock at t, which was read just now.
func (c *Clock) bootAt(t time.Time) time.Duration {
	mono := t.Sub(c.origin)
	wall := time.Duration(c.wall(t)-c.origin.UnixNano()) - mono
	if last := c.last.Load(); last != nil && (wall-last.wall).Abs() < apart {
		return mono + last.boot
	}
	boot := c.boot()
	c.last.Store(&ahead{wall, boot - mono})
	return boot
}

// Instant is a moment on both clocks. The zero Instant has passed.
type Instant struct {
	mono time.Time
	boot time.Duration
	of   *Clock
}

// Now is the present moment on the clock of an Instant that is not zero.
func (i Instant) Now() Instant { return i.of.Now() }

// Add is the moment d later.
func (i Instant) Add(d time.Duration) Instant {
	return Instant{mono: i.mono.Add(d), boot: i.boot + d, of: i.of}
}

// Passed reports whether the moment is reached on either clock.
func (i Instant) Passed() bool { return i.Left() <= 0 }

// Left is the time until then, by the clock that is closer to it. It is not positive when the moment has passed.
func (i Instant) Left() time.Duration {
	if i.of == nil {
		return 0
	}
	t := time.Now()
	return min(i.mono.Sub(t), i.boot-i.of.bootAt(t))
}

// Since is how long ago the moment was, by the clock that says more.
func (i Instant) Since() time.Duration { return -i.Left() }

// Earlier is the earlier of two moments of one clock.
func (i Instant) Earlier(j Instant) Instant {
	if j.mono.Before(i.mono) {
		i.mono = j.mono
	}
	return Instant{mono: i.mono, boot: min(i.boot, j.boot), of: i.of}
}

// After reports whether the moment is later than another one of the same clock.
func (i Instant) After(j Instant) bool { return i.mono.After(j.mono) }

// Time is the moment on the monotonic clock, for timers. After a suspension that clock is late: ask [Instant.Passed].
func (i Instant) Time() time.Time { return i.mono }

// Bound ends a context at the moment, by a timer: it is late after a suspension.
func (i Instant) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, i.mono)
}

// IsZero reports whether the moment was never set.
func (i Instant) IsZero() bool { return i.of == nil }
