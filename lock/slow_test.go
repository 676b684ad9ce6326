package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// promptly bounds an operation that does not have to wait for a node. If it waited, it would take the node timeout,
// which is twice as long.
func promptly(t *testing.T, what string, f func()) {
	t.Helper()
	within(t, patient/2, what, f)
}

func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	begun := time.Now()
	f()
	if took := time.Since(begun); took >= limit {
		t.Fatalf("%s took %v", what, took)
	}
}

// check is must for goroutines other than the test's own.
func check(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

func TestAFrozenMinorityDelaysNothing(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 5, redisserver.Config{})
	l := started(t, cfg) // with a long node timeout, for which nothing may wait
	release(t, acquire(t, l, "r"))
	for _, i := range []int{0, 3} {
		freeze(t, servers[i])
	}
	for range 10 {
		var lease *lock.Lease
		promptly(t, "acquire", func() { lease = acquire(t, l, "r", lock.WithTTL(time.Minute)) })
		promptly(t, "extend", func() { must(t, lease.Extend(t.Context(), time.Minute)) })
		promptly(t, "release", func() { release(t, lease) })
	}
}

// Without its own time limit an operation would take as long as the connection waits, which is four times the node
// timeout, or the lease's minute.
func TestAFrozenMajorityFailsWithinTheNodeTimeout(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	l := started(t, cfg)
	lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
	cfg.NodeTimeout = silence
	quick := locker(t, cfg)
	freeze(t, servers[0])
	freeze(t, servers[1])
	// On a busy machine one of several tries is fast enough.
	within := func(what string, f func()) {
		t.Helper()
		const limit = 4 * silence
		for range 3 {
			begun := time.Now()
			f()
			took := time.Since(begun)
			if took < limit {
				return
			}
			t.Logf("%s took %v", what, took)
		}
		t.Fatalf("%s never took less than %v", what, limit)
	}
	within("acquire", func() {
		_, err := quick.TryAcquire(t.Context(), "other", lock.WithTTL(time.Minute))
		if !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, lock.ErrNodeTimeout) {
			t.Errorf("acquire: %v", err)
		}
	})
	within("extend", func() {
		if _, err := quick.Extend(t.Context(), lease.Ref(), time.Minute); !errors.Is(err, lock.ErrNoQuorum) {
			t.Errorf("extend: %v", err)
		}
	})
	within("release", func() {
		if err := quick.Release(t.Context(), lease.Ref()); !errors.Is(err, lock.ErrNoQuorum) {
			t.Errorf("release: %v", err)
		}
	})
}

func TestADeadMajorityFailsAndItsReturnIsNoticed(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.MaxTTL, cfg.Armer, cfg.Epochs = 200*time.Millisecond, &register{}, &epochs{}
	l := started(t, cfg)
	lease := acquire(t, l, "r")
	must(t, servers[0].Kill())
	must(t, servers[1].Kill())
	eventually(t, 20*time.Second, "two nodes fail, and not the third", func() (two bool) { // it may answer too late
		promptly(t, "acquire", func() {
			_, err := l.TryAcquire(t.Context(), "other")
			var quorum *lock.QuorumError
			if !errors.As(err, &quorum) || quorum.Quorum != 2 {
				t.Errorf("acquire: %v", err)
			} else if two = len(quorum.Causes) == 2; !two {
				t.Logf("acquire: %v", err)
			}
		})
		return two || t.Failed()
	})
	if err := lease.Extend(t.Context(), 200*time.Millisecond); !errors.Is(err, lock.ErrNoQuorum) && !errors.Is(err, lock.ErrLost) {
		t.Errorf("extend: %v", err)
	}
	must(t, servers[0].Restart(t.Context()))
	must(t, servers[1].Restart(t.Context()))
	eventually(t, time.Minute, "leases can be had again", func() bool {
		next, err := l.TryAcquire(t.Context(), "r")
		return err == nil && next.Ref().Token > lease.Ref().Token
	})
}

// A frozen node executes late what it was sent. The release must come after its acquire, or a lock without an owner
// stays for one TTL.
func TestAFrozenNodeKeepsNoGhostLock(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{}) // their connections outlast the freeze
	l := started(t, cfg)
	eventually(t, 10*time.Second, "connections are up", func() bool {
		lease, err := l.TryAcquire(t.Context(), "warm-up")
		return err == nil && lease.Release(t.Context()) == nil
	})
	for round := range 4 {
		freeze(t, servers[round%3])
		for range 5 {
			lease, err := tryAcquire(t, l, "r", lock.WithTTL(time.Minute))
			must(t, err)
			must(t, lease.Release(t.Context()))
		}
		must(t, servers[round%3].Thaw())
		free(t, l, "r")
	}
}

func TestAGroupWithoutAnyNodeSaysWhy(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	must(t, servers[0].Kill())
	l := locker(t, cfg)
	_, err := l.TryAcquire(t.Context(), "r")
	var node *lock.NodeError
	if !errors.Is(err, lock.ErrNoQuorum) || !errors.As(err, &node) || node.Node != "node-1" {
		t.Fatalf("got %v", err)
	}
	if err := ping(t, l); !errors.Is(err, lock.ErrNoQuorum) {
		t.Fatalf("ping: %v", err)
	}
}
