package lock

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// clock tells a Locker the time, and how long to wait at random. The time is that of two clocks: the monotonic one of Go's timers, and one that also runs while the
// machine is suspended. The Redis nodes run on meanwhile.
//
// Reading the second one takes a system call; the others do not. A suspension also moves the wall clock against the
// monotonic one, so the second is read only after these two have moved apart by half a millisecond, which is well
// below the safety margin of any deadline.
type clock struct {
	origin time.Time
	wall   func(t time.Time) int64 // the wall clock at t, in nanoseconds
	boot   func() time.Duration    // CLOCK_BOOTTIME
	rand   func(n int64) int64     // from 0, and less than n
	last   atomic.Pointer[ahead]
}

// ahead is how far the other clocks were ahead of the monotonic one.
type ahead struct{ wall, boot time.Duration }

func newClock() *clock {
	return &clock{origin: time.Now(), wall: time.Time.UnixNano, boot: readBoot, rand: rand.Int64N}
}

// now is the present moment.
func (c *clock) now() instant {
	t := time.Now()
	return instant{mono: t, boot: c.bootAt(t), of: c}
}

// bootAt is the boot clock at t, which was read just now.
func (c *clock) bootAt(t time.Time) time.Duration {
	mono := t.Sub(c.origin)
	wall := time.Duration(c.wall(t)-c.origin.UnixNano()) - mono
	if last := c.last.Load(); last != nil && (wall-last.wall).Abs() < driftFloor/4 {
		return mono + last.boot
	}
	boot := c.boot()
	c.last.Store(&ahead{wall, boot - mono})
	return boot
}

// random is a random time from 0, and less than d.
func (c *clock) random(d time.Duration) time.Duration { return time.Duration(c.rand(int64(d))) }

// jitter is a random wait between two tries that all processes may make.
func (c *clock) jitter() time.Duration { return 50*time.Millisecond + c.random(200*time.Millisecond) }

// instant is a moment on both clocks. The zero instant has passed.
type instant struct {
	mono time.Time
	boot time.Duration
	of   *clock
}

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono.Add(d), boot: i.boot + d, of: i.of}
}

// passed reports whether the moment is reached on either clock.
func (i instant) passed() bool { return i.left() <= 0 }

// left is the time until then, by the clock that is closer to it. It is not positive when the moment has passed.
func (i instant) left() time.Duration {
	if i.of == nil {
		return 0
	}
	t := time.Now()
	return min(i.mono.Sub(t), i.boot-i.of.bootAt(t))
}

// earlier is the earlier of two moments.
func (i instant) earlier(j instant) instant {
	return instant{mono: minTime(i.mono, j.mono), boot: min(i.boot, j.boot), of: i.of}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
