package lock

import (
	"testing"
	"time"
)

// What was known before a suspension is not believed after it: the wall clock
// has moved against the monotonic one then.
func TestTheBootClockIsReadAgainOnceTheWallClockHasMoved(t *testing.T) {
	t.Parallel()
	for _, moved := range []time.Duration{0, time.Second, -time.Hour} {
		now := time.Now()
		boot := readBoot()
		wall := time.Duration(now.UnixNano()-origin.UnixNano()) - now.Sub(origin)
		known := ahead{wall: wall, boot: boot - now.Sub(origin)}
		if moved != 0 { // as if the machine had slept since
			known.wall -= moved
			known.boot -= moved
		}
		lastAhead.Store(&known)
		if off := sinceBootAt(now) - boot; off.Abs() > 400*time.Millisecond {
			t.Errorf("moved by %v: off by %v", moved, off)
		}
	}
}
