//go:build unix

package leases

import (
	"testing"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

// The look for leases that ran out may come while the next one is armed here and drains.
func TestATokenThatIsBeingSupersededIsNotForgotten(t *testing.T) {
	t.Parallel()
	ref := leasing.Ref{Resource: "r", Token: 5}
	for arming, want := range map[bool]int64{true: 5, false: 0} {
		h := NewLedger()
		h.Note(ref, clock.Instant{})
		end := func() {}
		if arming {
			end = h.arm("r")
		}
		h.ended(ref)
		if got := h.armed("r", 6); int64(got) != want {
			t.Errorf("arming %t: token %d is superseded, want %d", arming, got, want)
		}
		if end(); len(h.arming) != 0 {
			t.Errorf("%v is still noted", h.arming)
		}
	}
}
