package node_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

func TestABatchAnswersEachOpAsItsOwnScriptWould(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a, b, foreign := node.NewID(), node.NewID(), node.NewID()
		m.run(0, m.on("held", node.OpAcquire, foreign), m.on("mine", node.OpAcquire, a), m.on("theirs", node.OpAcquire, foreign))
		floor := m.on("floor", node.OpAcquire, b)
		floor.N = 1 << 52
		long := m.on("long", node.OpAcquire, b)
		long.TTL = (lock.DefaultMaxTTL + time.Second).Milliseconds()
		spent := m.on("spent", node.OpAcquire, b)
		spent.N = 1<<32 - 1
		got := m.run(0,
			m.on("mine", node.OpRelease, a),
			m.on("new", node.OpAcquire, b),
			m.on("theirs", node.OpRelease, a),
			m.on("held", node.OpAcquire, b),
			floor, long, spent,
			m.on("never", node.OpRelease, a),
		)
		for i, want := range []int64{1, 1, 0, node.CodeRefused, 1<<52 + 1, node.CodeMaxTTL, node.CodeExhausted, 0} {
			if got[i].Err != nil || got[i].N != want {
				t.Errorf("answer %d: %+v; want %d", i, got[i], want)
			}
		}
		if held := got[3]; held.Holder != "h-held" || held.Floor != 1 || held.PTTL <= 0 || held.PTTL > 60_000 {
			t.Errorf("held: %+v", held)
		}
		if got[5].PTTL != lock.DefaultMaxTTL.Milliseconds() {
			t.Errorf("maximum: %+v", got[5])
		}
		again := m.run(0, m.on("mine", node.OpAcquire, b), m.on("theirs", node.OpAcquire, b), m.on("new", node.OpAcquire, a))
		for i, want := range []int64{2, node.CodeRefused, node.CodeRefused} {
			if again[i].N != want {
				t.Errorf("afterwards %d: %+v; want %d", i, again[i], want)
			}
		}
	})
}

func TestABatchOnANodeThatLostItsDataGrantsNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := node.NewID()
		m.run(0, m.on("1", node.OpAcquire, a))
		if err := m.client(0).Del(t.Context(), m.keys.H).Err(); err != nil {
			t.Fatal(err)
		}
		for i, r := range m.run(0, m.on("2", node.OpAcquire, a), m.on("3", node.OpAcquire, a)) {
			if r.Err == nil || r.Sent {
				t.Errorf("%d: %+v", i, r)
			}
		}
	})
}

// A late acquire and its own release come in one batch, together with the next acquire. A batch that did not keep the
// order would leave a lock without an owner, or refuse the next holder.
func TestABatchKeepsTheOrderOfARepeatedResource(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a, b := node.NewID(), node.NewID()
		m.run(0, m.on("x", node.OpAcquire, a))
		got := m.run(0,
			m.on("1", node.OpAcquire, a), m.on("2", node.OpAcquire, a), m.on("1", node.OpRelease, a), m.on("2", node.OpRelease, a),
			m.on("x", node.OpRelease, b), m.on("x", node.OpRelease, a), m.on("x", node.OpAcquire, b), m.on("1", node.OpAcquire, b),
			m.on("x", node.OpAcquire, a), m.on("x", node.OpAcquire, b), m.on("3", node.OpAcquire, a), m.on("3", node.OpRelease, a),
		)
		for i, want := range []int64{1, 1, 1, 1, 0, 1, 2, 2, 0, 3, 1, 1} {
			if got[i].N != want {
				t.Errorf("answer %d: %+v; want %d", i, got[i], want)
			}
		}
		if held := got[8]; held.Holder != "h-x" || held.Floor != 2 || held.PTTL <= 0 || held.PTTL > 60_000 {
			t.Errorf("held by one of the same batch: %+v", held)
		}
		for resource, owner := range map[string]string{"1": b, "x": b, "2": "", "3": ""} {
			value, _ := m.client(0).Get(t.Context(), m.keys.Lock(resource)).Result()
			if got := value[:min(len(value), node.OwnerLength)]; got != owner {
				t.Errorf("%s is held by %q; want %q", resource, got, owner)
			}
		}
	})
}

// A node's base replaces every counter that it lost or that a sweep deleted, whether a resource comes alone or with
// others.
func TestAcquisitionsCountOnFromTheBase(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		const base = int64(7)<<32 + 5
		a, b := node.NewID(), node.NewID()
		m.run(0, m.on("held", node.OpAcquire, a))
		if err := m.client(0).HSet(t.Context(), m.keys.H, "@base", base).Err(); err != nil {
			t.Fatal(err)
		}
		alone, floored := m.on("alone", node.OpAcquire, b), m.on("floored", node.OpAcquire, b)
		floored.N = 3
		for what, got := range map[string][]node.Reply{
			"alone":   m.run(0, alone),
			"a batch": m.run(0, m.on("1", node.OpAcquire, b), m.on("2", node.OpAcquire, b)),
			"floors":  m.run(0, m.on("3", node.OpAcquire, b), floored),
		} {
			for i, r := range got {
				if r.Err != nil || r.N != base+1 {
					t.Errorf("%s: acquire %d: %+v; want %d", what, i+1, r, base+1)
				}
			}
		}
		for what, got := range map[string][]node.Reply{
			"alone":   m.run(0, m.on("held", node.OpAcquire, b)),
			"a batch": m.run(0, m.on("held", node.OpAcquire, b), m.on("4", node.OpAcquire, b)),
		} {
			if got[0].N != node.CodeRefused || got[0].Floor != base {
				t.Errorf("%s: refused with %+v; want the floor %d", what, got[0], base)
			}
		}
	})
}
