package clock

import (
	"testing"
	"time"
)

// The cached boot clock is not used after a suspension, because the wall clock has moved against the monotonic one.
func TestTheBootClockIsReadAgainOnceTheWallClockHasMoved(t *testing.T) {
	t.Parallel()
	for _, moved := range []time.Duration{0, time.Second, -time.Hour} {
		c := New()
		before := readBoot()
		now := time.Now()
		wall := time.Duration(now.UnixNano()-c.origin.UnixNano()) - now.Sub(c.origin)
		known := ahead{wall: wall, boot: before - now.Sub(c.origin)}
		if moved != 0 { // as if the machine had been suspended since
			known.wall -= moved
			known.boot -= moved
		}
		c.last.Store(&known)
		if got, after := c.bootAt(now), readBoot(); got < before || got > after {
			t.Errorf("moved by %v: %v; it was between %v and %v", moved, got, before, after)
		}
	}
}
