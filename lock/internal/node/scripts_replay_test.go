package node_test

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

func (m *messages) acquire(i int, owner string) int64 {
	return m.send(i, &node.Op{Kind: node.OpAcquire, Ask: node.Ask{Owner: owner}}).N
}

func (m *messages) confirm(i int, owner string, token int64) bool {
	return m.send(i, &node.Op{Kind: node.OpConfirm, Ask: node.Ask{Owner: owner, N: token}}).N == 1
}

// expire removes the lock, as its TTL would.
func (m *messages) expire(i int) {
	if err := m.client(i).Del(m.t.Context(), m.keys.Lock("r")).Err(); err != nil {
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
		early, a, b := node.NewID(), node.NewID(), node.NewID()
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
		a, b := node.NewID(), node.NewID()
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
		a := node.NewID()
		m.expect("first", m.acquire(0, a), int64(1))
		m.expect("second", m.acquire(0, a), int64(2))
	})
}

func TestFloorLiftsTheCounter(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := node.NewID()
		r := m.send(0, &node.Op{Kind: node.OpAcquire, Ask: node.Ask{Owner: a, N: 1 << 52}})
		m.expect("above the floor, exactly", r.N, int64(1<<52+1))
		m.expire(0)
		m.expect("it stays", m.acquire(0, node.NewID()), int64(1<<52+2))
	})
}

func TestTokensOfAnEpochRunOut(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		m.expect("the last one", m.send(0, &node.Op{Kind: node.OpAcquire, Ask: node.Ask{Owner: node.NewID(), N: 1<<32 - 2}}).N, int64(1<<32-1))
		m.expire(0)
		m.expect("none left", m.acquire(0, node.NewID()), int64(node.CodeExhausted))
		m.expect("nor below 2^53", m.send(0, &node.Op{Kind: node.OpAcquire, Ask: node.Ask{Owner: node.NewID(), N: 1<<53 - 2}}).N, int64(1<<53-1))
		m.expire(0)
		m.expect("at 2^53", m.acquire(0, node.NewID()), int64(node.CodeExhausted))
	})
}

// A node that lost its counters, and was admitted again, may still have the lock. It executes only messages
// of its own incarnation.
func TestANodeDoesNothingForAnotherIncarnation(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, m *messages) {
		a := node.NewID()
		m.expect("a", m.acquire(0, a), int64(1))
		incarnation := func(nonce string) {
			if err := m.client(0).HSet(t.Context(), m.keys.H, "@incarnation", nonce).Err(); err != nil {
				t.Fatal(err)
			}
		}
		nonce, err := m.client(0).HGet(t.Context(), m.keys.H, "@incarnation").Result()
		if err != nil {
			t.Fatal(err)
		}
		confirm := m.on("r", node.OpConfirm, a)
		confirm.N = 1
		for what, ops := range map[string][]*node.Op{
			"confirm": {confirm},
			"acquire": {m.on("s", node.OpAcquire, a)},
			"extend":  {m.on("r", node.OpExtend, a)},
			"batch":   {m.on("s", node.OpAcquire, a), m.on("t", node.OpAcquire, a)},
		} {
			m.run(0, m.on("warm", node.OpRelease, a), m.on("warmer", node.OpRelease, a)) // bound to the first incarnation
			incarnation("another")
			for _, got := range m.run(0, ops...) {
				if !errors.Is(got.Err, lock.ErrQuarantined) || got.Sent {
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
		a := node.NewID()
		m.expect("a", m.acquire(0, a), int64(1))
		if err := m.client(0).HSet(t.Context(), m.keys.H, "@base", 2).Err(); err != nil {
			t.Fatal(err)
		}
		m.expect("a token below the base", m.confirm(0, a, 1), false)
		m.expect("a token at the base", m.confirm(0, a, 2), true)
	})
}
