//go:build !linux

package lock

import "time"

// sinceBoot is the wall clock where no clock is known that runs through a
// suspension. A step forward can only end a lease too early.
func sinceBoot() time.Duration { return time.Duration(time.Now().UnixNano()) }
