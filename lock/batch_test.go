package lock

import (
	"fmt"
	"testing"
	"time"
)

// run executes ops on one node in one go, as the node's goroutine would, and
// returns their replies in the same order. The goroutine is idle meanwhile.
func (m *messages) run(node int, ops ...*op) []reply {
	m.t.Helper()
	replies := make([]reply, len(ops))
	channels := make([]chan reply, len(ops))
	for i, o := range ops {
		channels[i] = make(chan reply, 1)
		o.reply, o.node, o.expires = channels[i], node, time.Now().Add(time.Minute)
		if o.ttl == 0 {
			o.ttl = 60_000
		}
	}
	m.l.nodes[node].exec(ops)
	for i, c := range channels {
		replies[i] = <-c
	}
	return replies
}

func (m *messages) on(resource string, kind opKind, owner string) *op {
	return &op{kind: kind, owner: owner, holder: "h-" + resource, key: m.l.keys.lock(resource), field: counterField(resource)}
}

func TestABatchAnswersEachOpAsItsOwnScriptWould(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a, b, foreign := newID(), newID(), newID()
		m.run(0, m.on("held", opAcquire, foreign), m.on("mine", opAcquire, a), m.on("theirs", opAcquire, foreign))
		floor := m.on("floor", opAcquire, b)
		floor.n = 1 << 52
		long := m.on("long", opAcquire, b)
		long.ttl = (DefaultMaxTTL + time.Second).Milliseconds()
		spent := m.on("spent", opAcquire, b)
		spent.n = 1<<32 - 1
		got := m.run(0,
			m.on("mine", opRelease, a),
			m.on("new", opAcquire, b),
			m.on("theirs", opRelease, a),
			m.on("held", opAcquire, b),
			floor, long, spent,
			m.on("never", opRelease, a),
		)
		for i, want := range []int64{1, 1, 0, codeRefused, 1<<52 + 1, codeMaxTTL, codeExhausted, 0} {
			if got[i].err != nil || got[i].n != want {
				t.Errorf("answer %d: %+v; want %d", i, got[i], want)
			}
		}
		if held := got[3]; held.holder != "h-held" || held.floor != 1 || held.pttl <= 0 || held.pttl > 60_000 {
			t.Errorf("held: %+v", held)
		}
		if got[5].pttl != DefaultMaxTTL.Milliseconds() {
			t.Errorf("maximum: %+v", got[5])
		}
		again := m.run(0, m.on("mine", opAcquire, b), m.on("theirs", opAcquire, b), m.on("new", opAcquire, a))
		for i, want := range []int64{2, codeRefused, codeRefused} {
			if again[i].n != want {
				t.Errorf("afterwards %d: %+v; want %d", i, again[i], want)
			}
		}
	})
}

func TestABatchOnANodeThatLostItsDataGrantsNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := newID()
		m.run(0, m.on("1", opAcquire, a))
		if err := m.l.nodes[0].client.Del(t.Context(), m.l.keys.h).Err(); err != nil {
			t.Fatal(err)
		}
		for i, r := range m.run(0, m.on("2", opAcquire, a), m.on("3", opAcquire, a)) {
			if r.err == nil || r.sent {
				t.Errorf("%d: %+v", i, r)
			}
		}
	})
}

// A batch does its acquires before its releases: with a resource twice in it,
// the release would miss the acquire that it was sent to undo, or undo one that
// came after it.
func TestABatchIsCutAtARepeatedResource(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a, b := newID(), newID()
		m.run(0, m.on("x", opAcquire, a))
		got := m.run(0,
			m.on("1", opAcquire, a), m.on("2", opAcquire, a), m.on("1", opRelease, a), m.on("2", opRelease, a),
			m.on("x", opRelease, a), m.on("x", opAcquire, b), m.on("1", opAcquire, b),
		)
		for i, want := range []int64{1, 1, 1, 1, 1, 2, 2} {
			if got[i].n != want {
				t.Errorf("answer %d: %+v; want %d", i, got[i], want)
			}
		}
	})
}

func TestSegmentsKeepTheOrderAndTheCap(t *testing.T) {
	t.Parallel()
	var ops []*op
	for i := range 3*maxSegment + 5 {
		ops = append(ops, &op{kind: opAcquire, key: fmt.Sprint(i)})
	}
	ops[7].kind = opExtend
	var total int
	for _, seg := range segments(nil, ops) {
		if len(seg) > maxSegment || len(seg) > 1 && !batchable(seg[0]) {
			t.Errorf("segment of %d, kind %d", len(seg), seg[0].kind)
		}
		for _, o := range seg {
			if o != ops[total] {
				t.Fatalf("order changed at %d", total)
			}
			total++
		}
	}
	if total != len(ops) {
		t.Errorf("%d ops of %d", total, len(ops))
	}
}
