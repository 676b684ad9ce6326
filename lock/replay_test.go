package lock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
)

// messages sends single ops to single nodes, in the order that the test chooses.
type messages struct {
	t *testing.T
	l *Locker
}

func newMessages(t *testing.T, cfg Config) *messages {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	testenv.Eventually(t, "the group is initialised", func() error { return l.Init(t.Context()) })
	return &messages{t, l}
}

// replies is a sink with a buffer.
type replies chan reply

func (c replies) deliver(r reply) { c <- r }

func (m *messages) send(node int, o *op) reply {
	m.t.Helper()
	replies := make(replies, 1)
	o.resource, o.ttl = "r", 60_000
	o.node, o.sink, o.expires = node, replies, time.Now().Add(time.Minute)
	m.l.nodes[node].submit(o)
	r := <-replies
	if r.err != nil {
		m.t.Fatalf("node %d: %v", node, r.err)
	}
	return r
}

func (m *messages) acquire(node int, owner string) int64 {
	return m.send(node, &op{kind: opAcquire, ask: ask{owner: owner}}).n
}

func (m *messages) confirm(node int, owner string, token int64) bool {
	return m.send(node, &op{kind: opConfirm, ask: ask{owner: owner, n: token}}).n == 1
}

// expire removes the lock, as its TTL would.
func (m *messages) expire(node int) {
	if err := m.l.nodes[node].client.Del(m.t.Context(), m.l.keys.lock("r")).Err(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *messages) expect(what string, got, want any) {
	m.t.Helper()
	if got != want {
		m.t.Fatalf("%s: %v; want %v", what, got, want)
	}
}

// A phase-1 message arrives a second time after the attempt's lock is gone. If confirm only checked the owner,
// attempts a and b would both have token 2. 27,000 random attempts never produced this order.
func TestARepeatedAcquireDoesNotLetTwoAttemptsConfirmOneToken(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		const x, y, z = 0, 1, 2
		early, a, b := newID(), newID(), newID()
		m.expect("an early attempt reaches z only", m.acquire(z, early), int64(1))
		m.expire(z)
		m.expect("a at x", m.acquire(x, a), int64(1))
		m.expect("a at z", m.acquire(z, a), int64(2)) // a has its quorum, token 2, and must confirm at x
		m.expire(x)
		m.expect("b at x", m.acquire(x, b), int64(2))
		m.expect("b at y", m.acquire(y, b), int64(1)) // b has its quorum, token 2, and must confirm at y
		m.expect("b confirms at y", m.confirm(y, b, 2), true)
		// b holds token 2. Its lock at x expires; a's acquire arrives there again.
		m.expire(x)
		m.expect("a at x again", m.acquire(x, a), int64(3))
		m.expect("a confirms at x", m.confirm(x, a, 2), false)
	})
}

// A confirm that arrives after the lock has changed hands must fail. Otherwise a quorum would be counted that never
// existed at one time.
func TestConfirmFailsWhereTheLockIsAnothers(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a, b := newID(), newID()
		m.acquire(0, a)
		m.expire(0)
		m.expect("nobody's", m.confirm(0, a, 5), false)
		m.acquire(0, b)
		m.expect("another's", m.confirm(0, a, 5), false)
		m.expect("the owner's", m.confirm(0, b, 5), true)
		m.expect("counter after it", m.acquire(0, b), int64(6))
	})
}

// A repeated acquire increments the counter: returning the existing grant let a token be used twice.
func TestARepeatedAcquireCountsUp(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := newID()
		m.expect("first", m.acquire(0, a), int64(1))
		m.expect("second", m.acquire(0, a), int64(2))
	})
}

func TestFloorLiftsTheCounter(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := newID()
		r := m.send(0, &op{kind: opAcquire, ask: ask{owner: a, n: 1 << 52}})
		m.expect("above the floor, exactly", r.n, int64(1<<52+1))
		m.expire(0)
		m.expect("it stays", m.acquire(0, newID()), int64(1<<52+2))
	})
}

func TestTokensOfAnEpochRunOut(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		m.expect("the last one", m.send(0, &op{kind: opAcquire, ask: ask{owner: newID(), n: 1<<32 - 2}}).n, int64(1<<32-1))
		m.expire(0)
		m.expect("none left", m.acquire(0, newID()), int64(codeExhausted))
		m.expect("nor below 2^53", m.send(0, &op{kind: opAcquire, ask: ask{owner: newID(), n: 1<<53 - 2}}).n, int64(1<<53-1))
		m.expire(0)
		m.expect("at 2^53", m.acquire(0, newID()), int64(codeExhausted))
	})
}

// onEach runs a directed test over three real nodes, whose scripts Lua runs, and over three embedded ones.
func onEach(t *testing.T, test func(*testing.T, *messages)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := testenv.Redis(t, 3)
		cfg := Config{KeyPrefix: Prefix(r.Prefix), NodeTimeout: Patient}
		for _, addr := range r.Addrs {
			cfg.Nodes = append(cfg.Nodes, Node{Addr: addr})
		}
		test(t, newMessages(t, cfg))
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			m, _ := inBubble(t, 3)
			test(t, m)
		})
	})
}

// A node that lost its counters, and was admitted again meanwhile, may still have the lock. It executes only messages
// of its own incarnation.
func TestANodeDoesNothingForAnotherIncarnation(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := newID()
		m.expect("a", m.acquire(0, a), int64(1))
		incarnation := func(nonce string) {
			if err := m.l.nodes[0].client.HSet(t.Context(), m.l.keys.h, "@incarnation", nonce).Err(); err != nil {
				t.Fatal(err)
			}
		}
		nonce, err := m.l.nodes[0].client.HGet(t.Context(), m.l.keys.h, "@incarnation").Result()
		if err != nil {
			t.Fatal(err)
		}
		confirm := m.on("r", opConfirm, a)
		confirm.n = 1
		for what, ops := range map[string][]*op{
			"confirm": {confirm},
			"acquire": {m.on("s", opAcquire, a)},
			"extend":  {m.on("r", opExtend, a)},
			"batch":   {m.on("s", opAcquire, a), m.on("t", opAcquire, a)},
		} {
			m.run(0, m.on("warm", opRelease, a), m.on("warmer", opRelease, a)) // bound to the first incarnation
			incarnation("another")
			for _, got := range m.run(0, ops...) {
				if !errors.Is(got.err, ErrQuarantined) || got.sent {
					t.Errorf("%s: %+v", what, got)
				}
			}
			incarnation(nonce)
		}
	})
}

// The base replaces everything that was counted and lost.
func TestNothingIsConfirmedBelowTheBase(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := newID()
		m.expect("a", m.acquire(0, a), int64(1))
		if err := m.l.nodes[0].client.HSet(t.Context(), m.l.keys.h, "@base", 2).Err(); err != nil {
			t.Fatal(err)
		}
		m.expect("a token below the base", m.confirm(0, a, 1), false)
		m.expect("a token at the base", m.confirm(0, a, 2), true)
	})
}
