package lock

import (
	"testing"
	"time"
)

// What was known before a suspension is not believed after it: the wall clock
// has moved against the monotonic one then.
//
// What is known is the process's, so no other test may run beside this one.
func TestTheBootClockIsReadAgainOnceTheWallClockHasMoved(t *testing.T) {
	for _, moved := range []time.Duration{0, time.Second, -time.Hour} {
		before := readBoot()
		now := time.Now()
		wall := time.Duration(now.UnixNano()-origin.UnixNano()) - now.Sub(origin)
		known := ahead{wall: wall, boot: before - now.Sub(origin)}
		if moved != 0 { // as if the machine had slept since
			known.wall -= moved
			known.boot -= moved
		}
		lastAhead.Store(&known)
		if got, after := sinceBootAt(now), readBoot(); got < before || got > after {
			t.Errorf("moved by %v: %v; it was between %v and %v", moved, got, before, after)
		}
	}
}
