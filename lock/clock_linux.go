package lock

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ahead is how far the other clocks were ahead of the monotonic one.
type ahead struct{ wall, boot time.Duration }

var (
	origin    = time.Now()
	lastAhead atomic.Pointer[ahead]
)

// sinceBootAt is CLOCK_BOOTTIME at t, which was read just now. Go's monotonic clock stops while a laptop is
// suspended; the Redis nodes elsewhere go on.
//
// Reading that clock takes a system call; the other two do not. A suspension also moves the wall clock against the
// monotonic one, so the clock is read only after these two have moved apart by half a millisecond, which is well
// below the safety margin of any deadline.
func sinceBootAt(t time.Time) time.Duration {
	mono := t.Sub(origin)
	wall := time.Duration(t.UnixNano()-origin.UnixNano()) - mono
	if last := lastAhead.Load(); last != nil && (wall-last.wall).Abs() < driftFloor/4 {
		return mono + last.boot
	}
	boot := readBoot()
	lastAhead.Store(&ahead{wall, boot - mono})
	return boot
}

func readBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Duration(time.Now().UnixNano()) // as without such a clock
	}
	return time.Duration(ts.Nano())
}
