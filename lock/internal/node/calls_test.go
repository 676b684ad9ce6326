package node_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// Redis counts whole milliseconds: in the last one a key has none left, and is there.
func TestAQuarantineRunsToTheEndOfItsLastMillisecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, nodes := inBubble(t, 1)
		n := m.nodes[0]
		const quarantine = time.Second
		if err := nodes[0].Client(t).Set(t.Context(), m.keys.Q, "1", quarantine).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(quarantine - time.Millisecond/2)
		if left, err := n.InQuarantine(t.Context()); err != nil || left <= 0 {
			t.Errorf("half a millisecond before its end %v are left: %v", left, err)
		}
		time.Sleep(time.Millisecond)
		if left, err := n.InQuarantine(t.Context()); err != nil || left != 0 {
			t.Errorf("after its end %v are left: %v", left, err)
		}
	})
}
