package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// readBoot reads CLOCK_BOOTTIME.
func readBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Duration(time.Now().UnixNano()) // as without such a clock
	}
	return time.Duration(ts.Nano())
}
