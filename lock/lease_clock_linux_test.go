package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/lock"
)

// Exclusion depends on clocks; tokens do not. The test shows this documented limit, and that the jumps of TestTorture
// are real: they make a Redis' keys expire sooner, or later.
func TestAClockThatJumpsForwardEndsLocksEarlyAndTokensStillRise(t *testing.T) {
	t.Parallel()
	clock := clockshim.New(t)
	server, err := redisserver.Start(t.Context(), redisserver.Config{Env: clock.Env()})
	must(t, err)
	t.Cleanup(func() { check(t, server.Close()) })
	cfg := lock.Config{Nodes: nodesAt(server.Addr), NodeTimeout: patient}
	l, other, node := started(t, cfg), locker(t, cfg), client(t, server.Addr)
	expires := func() time.Duration { return node.PTTL(t.Context(), lock.DefaultKeyPrefix+":lock:r").Val() }
	first := acquire(t, l, "r", lock.WithTTL(time.Minute))
	if ttl := expires(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("before the jump the lock expires in %v", ttl)
	}
	must(t, clock.Set(2*time.Minute))
	second := acquire(t, other, "r", lock.WithTTL(time.Minute))
	if a, b := token(t, first), token(t, second); b <= a {
		t.Errorf("token %d after %d", b, a)
	}
	if err := first.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
		t.Errorf("extending the first: %v", err)
	}
	must(t, clock.Set(-time.Hour))
	if ttl := expires(); ttl < time.Hour {
		t.Errorf("once the clock was set back, the lock expires in %v", ttl)
	}
}
