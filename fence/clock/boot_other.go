//go:build !linux

package clock

import "time"

// readBoot is the wall clock, on systems without a supported clock that runs through a suspension. A step forward can
// only end a lease too early.
func readBoot() time.Duration { return time.Duration(time.Now().UnixNano()) }
