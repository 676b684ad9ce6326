package lock_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func TestLocksThatNeverExpireAreFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		release(t, acquire(t, l, "fine"))
		for _, name := range []string{"a", "b", "leaky"} {
			acquireOnAll(t, l, name, lock.WithHolder("worker-a"))
		}
		must(t, nodes[0].Client(t).Persist(t.Context(), lockKey("leaky")).Err())
		leaks, err := admin.Of(l).Leaks(t.Context())
		must(t, err)
		if len(leaks) != 1 || leaks[0] != (admin.Leak{Node: "node-1", Resource: "leaky", Holder: "worker-a"}) {
			t.Fatalf("leaks: %+v", leaks)
		}
		_, err = admin.Of(l).ForceRelease(t.Context(), "leaky")
		must(t, err)
		lease, err := l.TryAcquire(t.Context(), "leaky")
		must(t, err)
		release(t, lease)
	})
}

func TestForceReleaseRaisesTheFencePastTheHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		fences := &register{}
		cfg.Armer = fences
		l := started(t, cfg)
		held := acquire(t, l, "r")
		forced, err := admin.Of(l).ForceRelease(t.Context(), "r")
		must(t, err)
		if forced <= held.Ref().Token || !fences.fencedWrite("r", forced) {
			t.Errorf("forced %d, held %d; the fence accepts the forced one: %t", forced, held.Ref().Token, fences.fencedWrite("r", forced))
		}
		if err := held.Extend(t.Context(), lock.DefaultTTL); !errors.Is(err, lock.ErrLost) {
			t.Errorf("extend: %v", err)
		}
		if _, err := admin.Of(l).ForceRelease(t.Context(), ""); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	})
}
