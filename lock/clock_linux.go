package lock

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ahead is by how much other clocks were ahead of the monotonic one.
type ahead struct{ wall, boot time.Duration }

var (
	origin    = time.Now()
	lastAhead atomic.Pointer[ahead]
)

// sinceBootAt is what CLOCK_BOOTTIME says at a time that was read just now. Go's
// monotonic clock stands still while a laptop sleeps; the Redis nodes elsewhere
// do not.
//
// Reading that clock is a system call, the other two need none. A suspension
// moves the wall clock against the monotonic one as well, so the clock is read
// only after these two have moved apart: half a millisecond is well below the
// safety margin of any deadline.
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
		return time.Duration(time.Now().UnixNano()) // as where there is no such clock
	}
	return time.Duration(ts.Nano())
}
