package lock

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot reads CLOCK_BOOTTIME. Go's monotonic clock stands still while a
// laptop sleeps; the Redis nodes elsewhere do not.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Duration(time.Now().UnixNano()) // as where there is no such clock
	}
	return time.Duration(ts.Nano())
}
