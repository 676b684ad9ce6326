//go:build !linux

package lock

import "time"

// sinceBootAt is the wall clock, on systems without a supported clock that runs through a suspension. A step forward
// can only end a lease too early.
func sinceBootAt(t time.Time) time.Duration { return time.Duration(t.UnixNano()) }
