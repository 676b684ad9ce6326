package lock

import (
	"testing"
	"time"
)

// The cached boot clock is not used after a suspension, because the wall clock has moved against the monotonic one.
//
// The cache belongs to the process, so this test does not run in parallel with others.
func TestTheBootClockIsReadAgainOnceTheWallClockHasMoved(t *testing.T) {
	for _, moved := range []time.Duration{0, time.Second, -time.Hour} {
		before := readBoot()
		now := time.Now()
		wall := time.Duration(now.UnixNano()-origin.UnixNano()) - now.Sub(origin)
		known := ahead{wall: wall, boot: before - now.Sub(origin)}
		if moved != 0 { // as if the machine had been suspended since
			known.wall -= moved
			known.boot -= moved
		}
		lastAhead.Store(&known)
		if got, after := sinceBootAt(now), readBoot(); got < before || got > after {
			t.Errorf("moved by %v: %v; it was between %v and %v", moved, got, before, after)
		}
	}
}
