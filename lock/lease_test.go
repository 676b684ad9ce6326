package lock_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

func TestExtendMovesTheDeadline(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		lease := acquire(t, l, "r", lock.WithTTL(10*time.Second))
		old := lease.Deadline()
		if left := time.Until(old); left > 10*time.Second-100*time.Millisecond-2*time.Millisecond {
			t.Errorf("validity %v leaves no margin", left)
		}
		if err := lease.Extend(t.Context(), 60*time.Second); err != nil {
			t.Fatal(err)
		}
		if moved := lease.Deadline().Sub(old); moved < 45*time.Second {
			t.Errorf("deadline moved by %v", moved)
		}
		var ins leasing.Inspection
		must(t, patiently(t.Context(), func() (err error) { ins, err = l.Inspect(t.Context(), "r"); return err }))
		if !ins.Locked || ins.TTL < 50*time.Second || ins.Token != token(t, lease) {
			t.Errorf("inspect: %+v", ins)
		}
		release(t, lease)
		if err := lease.Extend(t.Context(), time.Second); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("extend after release: %v", err)
		}
		release(t, lease) // a second call is not an error
	})
}

func TestAShorterExtensionShortensTheDeadline(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
	if err := lease.Extend(t.Context(), 100*time.Millisecond); err != nil && !errors.Is(err, lock.ErrLost) { // the TTL may have run out
		t.Fatal(err)
	}
	select {
	case <-lease.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the context outlived the lock")
	}
	if _, err := lease.Grant(); !errors.Is(err, lock.ErrLost) {
		t.Fatalf("grant: %v", err)
	}
}

func TestExtendRefusesBadTTLs(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	lease := acquire(t, l, "r")
	for _, ttl := range []time.Duration{0, -time.Second, time.Microsecond, maxTTL + time.Second} {
		var invalid *fence.InvalidError
		if err := lease.Extend(t.Context(), ttl); !errors.As(err, &invalid) || invalid.Field != "ttl" {
			t.Errorf("%v: %v", ttl, err)
		}
	}
	release(t, lease)
}

func TestAnyProcessExtendsAndReleasesByReference(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3, 5}, func(t *testing.T, cfg lock.Config) {
		lease := acquire(t, started(t, cfg), "r", lock.WithTTL(20*time.Second))
		other := locker(t, cfg)
		valid, err := other.Extend(t.Context(), lease.Ref(), time.Minute)
		if err != nil || valid > time.Minute || valid <= 20*time.Second {
			t.Fatalf("extend: %v, %v", valid, err)
		}
		if _, err := tryAcquire(t, other, "r"); !errors.Is(err, lock.ErrHeld) {
			t.Fatalf("acquire: %v", err)
		}
		if err := other.Release(t.Context(), lease.Ref()); err != nil {
			t.Fatalf("release: %v", err)
		}
		if err := other.Release(t.Context(), lease.Ref()); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("second release: %v", err)
		}
		if _, err := other.Extend(t.Context(), lease.Ref(), time.Second); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("extend after release: %v", err)
		}
		release(t, acquire(t, other, "r"))
	})
}

func TestAForeignReferenceReleasesNothing(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	lease := acquire(t, l, "r")
	foreign := lease.Ref()
	foreign.Owner = "00000000000000000000000000000000"
	if err := l.Release(t.Context(), foreign); !errors.Is(err, lock.ErrLost) {
		t.Errorf("release: %v", err)
	}
	for _, ref := range []leasing.Ref{{}, {Resource: "r"}, {Resource: "r", Owner: "ZZ"}, {Resource: "*", Owner: foreign.Owner}} {
		if err := l.Release(t.Context(), ref); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%v: %v", ref, err)
		}
	}
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("the lock is gone: %v", err)
	}
	release(t, lease)
}

func TestExtensionNeverCreatesALockAgain(t *testing.T) {
	t.Parallel()
	backends(t, []int{3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		lease := acquireEverywhere(t, l, "r")
		for _, n := range cfg.Nodes {
			dropLock(t, n.Addr, cfg.KeyPrefix, "r")
		}
		if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("extend: %v", err)
		}
		if _, err := lease.Grant(); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("grant: %v", err)
		}
		var ins leasing.Inspection
		must(t, patiently(t.Context(), func() (err error) { ins, err = l.Inspect(t.Context(), "r"); return err }))
		if ins.Locked {
			t.Fatalf("inspect: %+v", ins)
		}
		next := acquire(t, l, "r")
		if token(t, next) <= lease.Ref().Token {
			t.Fatal("token fell")
		}
		release(t, next)
	})
}

func TestExtensionSucceedsWhileAQuorumStillHolds(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 5)
	l := started(t, cfg)
	lease := acquireEverywhere(t, l, "r")
	dropLock(t, cfg.Nodes[0].Addr, cfg.KeyPrefix, "r")
	dropLock(t, cfg.Nodes[1].Addr, cfg.KeyPrefix, "r")
	if err := lease.Extend(t.Context(), time.Minute); err != nil {
		t.Fatalf("two of five gone: %v", err)
	}
	dropLock(t, cfg.Nodes[2].Addr, cfg.KeyPrefix, "r")
	if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
		t.Fatalf("three of five gone: %v", err)
	}
}

func TestReleaseGoesOnWhenTheCallersContextHasEnded(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	ctx, cancel := context.WithCancel(t.Context())
	lease, err := l.Acquire(ctx, "r")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-lease.Done():
		t.Fatal("the lease ended with the context it was acquired under")
	default:
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, "r"))
}

// dropLock deletes a lock directly on a node.
func dropLock(t *testing.T, addr, prefix, resource string) {
	t.Helper()
	// An acquisition returns when a quorum has granted; this node may follow later.
	eventually(t, 10*time.Second, "the lock reaches "+addr, func() bool { return dropAnyLock(t, addr, prefix, resource) })
}

// dropAnyLock is dropLock for a lock that may be missing. It reports whether there was one.
func dropAnyLock(t *testing.T, addr, prefix, resource string) bool {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patient})
	defer func() { _ = c.Close() }()
	n, err := c.Del(t.Context(), cmp.Or(prefix, lock.DefaultKeyPrefix)+":lock:"+resource).Result()
	must(t, err)
	return n == 1
}
