package lock

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// run submits ops to one node together and returns their replies in the same order.
func (m *messages) run(node int, ops ...*op) []reply {
	m.t.Helper()
	answers := make([]reply, len(ops))
	sinks := make([]replies, len(ops))
	for i, o := range ops {
		sinks[i] = make(replies, 1)
		o.sink, o.node, o.expires = sinks[i], node, time.Now().Add(time.Minute)
		if o.ttl == 0 {
			o.ttl = 60_000
		}
	}
	m.l.nodes[node].submit(ops...)
	for i, c := range sinks {
		answers[i] = <-c
	}
	return answers
}

func (m *messages) on(resource string, kind opKind, owner string) *op {
	return &op{kind: kind, resource: resource, ask: ask{owner: owner, holder: "h-" + resource}}
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

// A late acquire and its own release come in one batch, together with the next acquire. A batch that did not keep the
// order would leave a lock without an owner, or refuse the next holder.
func TestABatchKeepsTheOrderOfARepeatedResource(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a, b := newID(), newID()
		m.run(0, m.on("x", opAcquire, a))
		got := m.run(0,
			m.on("1", opAcquire, a), m.on("2", opAcquire, a), m.on("1", opRelease, a), m.on("2", opRelease, a),
			m.on("x", opRelease, b), m.on("x", opRelease, a), m.on("x", opAcquire, b), m.on("1", opAcquire, b),
			m.on("x", opAcquire, a), m.on("x", opAcquire, b), m.on("3", opAcquire, a), m.on("3", opRelease, a),
		)
		for i, want := range []int64{1, 1, 1, 1, 0, 1, 2, 2, 0, 3, 1, 1} {
			if got[i].n != want {
				t.Errorf("answer %d: %+v; want %d", i, got[i], want)
			}
		}
		if held := got[8]; held.holder != "h-x" || held.floor != 2 || held.pttl <= 0 || held.pttl > 60_000 {
			t.Errorf("held by one of the same batch: %+v", held)
		}
		for resource, owner := range map[string]string{"1": b, "x": b, "2": "", "3": ""} {
			value, _ := m.l.nodes[0].client.Get(t.Context(), m.l.keys.lock(resource)).Result()
			if got := value[:min(len(value), ownerLength)]; got != owner {
				t.Errorf("%s is held by %q; want %q", resource, got, owner)
			}
		}
	})
}

// Every queued op is sent: each resource's ops in their order, in calls that name no resource twice and are not too
// long.
func TestAnArrangementKeepsEachResourcesOrder(t *testing.T) {
	t.Parallel()
	var p plan
	for _, resources := range []int{1, 2, 7, 100, 3 * maxSegment} {
		random := rand.New(rand.NewPCG(uint64(resources), 0))
		ops, order := make([]*op, 4*maxSegment), make(map[*op]int)
		for i := range ops {
			ops[i] = &op{kind: opKind(random.IntN(int(opKinds))), resource: strconv.Itoa(random.IntN(resources))}
			ops[i].wakes = ops[i].kind == opRelease && random.IntN(2) == 0
			order[ops[i]] = i
		}
		p.arrange(ops)
		last, rest := make(map[string]int), ops
		for _, size := range p.sizes {
			call := make(map[string]bool)
			for i, o := range rest[:size] {
				if before, ok := last[o.resource]; ok && before > order[o] || call[o.resource] {
					t.Fatalf("%d resources: %q came too early, or twice in one call", resources, o.resource)
				}
				last[o.resource], call[o.resource] = order[o], true
				if size > maxSegment || size > 1 && (o.part() == othersPart ||
					(o.part() == extendsPart) != (rest[0].part() == extendsPart) || i > 0 && rest[i-1].part() > o.part()) {
					t.Fatalf("%d resources: op %d, kind %d, is at the wrong place of a call of %d", resources, i, o.kind, size)
				}
			}
			rest = rest[size:]
		}
		if len(rest) > 0 {
			t.Errorf("%d resources: %d ops are in no call", resources, len(rest))
		}
		for _, o := range ops {
			delete(order, o)
		}
		if len(order) > 0 {
			t.Errorf("%d resources: %d ops are lost", resources, len(order))
		}
	}
}

// A node's base replaces every counter that it lost or that a sweep deleted, whether a resource comes alone or with
// others.
func TestAcquisitionsCountOnFromTheBase(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		const base = int64(7)<<32 + 5
		a, b := newID(), newID()
		m.run(0, m.on("held", opAcquire, a))
		if err := m.l.nodes[0].client.HSet(t.Context(), m.l.keys.h, "@base", base).Err(); err != nil {
			t.Fatal(err)
		}
		alone, floored := m.on("alone", opAcquire, b), m.on("floored", opAcquire, b)
		floored.n = 3
		for what, got := range map[string][]reply{
			"alone":   m.run(0, alone),
			"a batch": m.run(0, m.on("1", opAcquire, b), m.on("2", opAcquire, b)),
			"floors":  m.run(0, m.on("3", opAcquire, b), floored),
		} {
			for i, r := range got {
				if r.err != nil || r.n != base+1 {
					t.Errorf("%s: acquire %d: %+v; want %d", what, i+1, r, base+1)
				}
			}
		}
		for what, got := range map[string][]reply{
			"alone":   m.run(0, m.on("held", opAcquire, b)),
			"a batch": m.run(0, m.on("held", opAcquire, b), m.on("4", opAcquire, b)),
		} {
			if got[0].n != codeRefused || got[0].floor != base {
				t.Errorf("%s: refused with %+v; want the floor %d", what, got[0], base)
			}
		}
	})
}
