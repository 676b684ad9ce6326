package lock_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/lock"
)

// check is must for goroutines other than the test's own.
func check(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

// exactly fails unless f takes exactly that long.
func exactly(t *testing.T, want time.Duration, what string, f func()) {
	t.Helper()
	begun := time.Now()
	f()
	if got := time.Since(begun); got != want {
		t.Errorf("%s took %v; want %v", what, got, want)
	}
}

func TestAFrozenMinorityDelaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 5)
		l := started(t, cfg)
		release(t, acquire(t, l, "r"))
		synctest.Wait() // what the nodes are frozen with would be a sign of life later
		nodes[0].Freeze()
		nodes[3].Freeze()
		for range 10 {
			var lease *lock.Lease
			exactly(t, 0, "acquire", func() { lease = acquire(t, l, "r") })
			exactly(t, 0, "extend", func() { must(t, lease.Extend(t.Context(), time.Minute)) })
			exactly(t, 0, "release", func() { must(t, lease.Release(t.Context())) })
			time.Sleep(time.Second) // also while the connections end and are made again
		}
		nodes[0].Thaw()
		nodes[3].Thaw()
	})
}

// Without its own time limit an operation would take as long as the connection waits, or the lease's time. An
// extension by reference has a second.
func TestAFrozenMajorityFailsWithinTheNodeTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
		synctest.Wait()
		nodes[0].Freeze()
		nodes[1].Freeze()
		exactly(t, lock.DefaultNodeTimeout, "acquire", func() {
			_, err := l.TryAcquire(t.Context(), "other", lock.WithTTL(time.Minute))
			if !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, lock.ErrNodeTimeout) {
				t.Errorf("acquire: %v", err)
			}
		})
		exactly(t, time.Second, "extend", func() {
			if _, err := l.Extend(t.Context(), lease.Ref(), time.Minute); !errors.Is(err, lock.ErrNoQuorum) {
				t.Errorf("extend: %v", err)
			}
		})
		exactly(t, lock.DefaultNodeTimeout, "release", func() {
			if err := l.Release(t.Context(), lease.Ref()); !errors.Is(err, lock.ErrNoQuorum) {
				t.Errorf("release: %v", err)
			}
		})
		nodes[0].Thaw()
		nodes[1].Thaw()
	})
}

// A release that waits for its nodes, or for the fence, keeps nobody from seeing that the lease is over.
func TestAReleaseHoldsUpNoLookAtItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		synctest.Wait()
		nodes[0].Freeze()
		outcomes := make(chan error, 2)
		for range 2 { // the second call returns the outcome of the first
			go func() { outcomes <- lease.Release(t.Context()) }()
			synctest.Wait()
		}
		exactly(t, 0, "a look at the lease", func() {
			if _, err := lease.Grant(); !errors.Is(err, lock.ErrReleased) {
				t.Errorf("grant: %v", err)
			}
			if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrReleased) {
				t.Errorf("extend: %v", err)
			}
			lease.ReleaseAsync()
		})
		exactly(t, lock.DefaultNodeTimeout, "the release", func() {
			for range 2 {
				if err := <-outcomes; !errors.Is(err, lock.ErrNoQuorum) {
					t.Errorf("release: %v", err)
				}
			}
		})
		nodes[0].Thaw()
	})
}

func TestADeadMajorityFailsAndItsReturnIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Armer, cfg.Epochs = &register{}, &epochs{}
		ctx, cancel := context.WithCancel(t.Context())
		dial, dials := cfg.Nodes[0].Dialer, atomic.Int64{}
		cfg.Nodes[0].Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) == 1000 { // without pauses no time passes here
				cancel()
			}
			return dial(ctx, network, addr)
		}
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		synctest.Wait()
		nodes[0].Stop()
		nodes[1].Stop()
		exactly(t, 0, "acquire", func() {
			_, err := l.TryAcquire(t.Context(), "other")
			var quorum *lock.QuorumError
			if !errors.As(err, &quorum) || quorum.Quorum != 2 || len(quorum.Causes) != 2 {
				t.Errorf("acquire: %v", err)
			}
		})
		if _, err := l.Extend(ctx, lease.Ref(), time.Minute); !errors.Is(err, lock.ErrNoQuorum) {
			t.Errorf("extend: %v", err)
		}
		nodes[0].Lose(t) // and start again
		nodes[1].Lose(t)
		begun := time.Now()
		next, err := l.Acquire(t.Context(), "r")
		must(t, err)
		// A quarantine after their return is noticed.
		if waited := time.Since(begun); waited < lock.DefaultMaxTTL || waited > lock.DefaultMaxTTL+5*time.Second {
			t.Errorf("leases can be had again after %v", waited)
		}
		if token(t, next) <= lease.Ref().Token {
			t.Errorf("token %d after %d", token(t, next), lease.Ref().Token)
		}
	})
}

// A frozen node executes late what it was sent. The release must come after its acquire, or a lock without an owner
// stays for one TTL.
func TestAFrozenNodeKeepsNoGhostLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		release(t, acquire(t, l, "r")) // connects
		synctest.Wait()
		for round := range 4 {
			frozen := nodes[round%3]
			frozen.Freeze()
			release(t, acquire(t, l, "sent")) // what follows is queued
			for range 5 {
				release(t, acquire(t, l, "r"))
				time.Sleep(100 * time.Millisecond) // the connection outlasts the freeze
			}
			frozen.Thaw()
			synctest.Wait()
			freed(t, l, "sent")
			freed(t, l, "r")
		}
	})
}

func TestAGroupWithoutAnyNodeSaysWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		nodes[0].Stop()
		l := locker(t, cfg)
		_, err := l.TryAcquire(t.Context(), "r")
		var node *lock.NodeError
		if !errors.Is(err, lock.ErrNoQuorum) || !errors.As(err, &node) || node.Node != "node-1" {
			t.Fatalf("got %v", err)
		}
		if _, err := l.Ready(t.Context()); !errors.Is(err, lock.ErrNoQuorum) {
			t.Fatalf("ping: %v", err)
		}
	})
}
