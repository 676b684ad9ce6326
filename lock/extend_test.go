package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// The connections of frozen nodes end, and with them the rounds.
func TestAnExtensionIsTriedAgainWhileItsLeaseHasTime(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.NodeTimeout = brisk
	l := started(t, cfg)
	lease := acquireEverywhere(t, l, "r", lock.WithTTL(time.Minute))
	freeze(t, servers[0])
	freeze(t, servers[2])
	before := lease.Deadline()
	extended := make(chan error, 1)
	go func() { extended <- lease.Extend(t.Context(), 2*time.Minute) }()
	select {
	case err := <-extended:
		t.Fatalf("ended with %v while two of three nodes stood still", err)
	case <-time.After(3 * stall):
	}
	must(t, servers[0].Thaw())
	must(t, <-extended)
	if !lease.Deadline().After(before) {
		t.Error("the deadline stands where it was")
	}
}

func TestAnExtensionEndsWithItsLease(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	l := started(t, cfg)
	lease := acquire(t, l, "r", lock.WithTTL(2*time.Second))
	freeze(t, servers[0])
	err := lease.Extend(t.Context(), time.Minute)
	if !errors.Is(err, lock.ErrLost) || time.Now().Before(lease.Deadline()) {
		t.Errorf("%v, %v before the deadline", err, time.Until(lease.Deadline()))
	}
}

// A release, or the end of the caller's context, ends an extension that waits for its nodes.
func TestAReleaseWaitsForNoExtension(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	started(t, cfg)
	cfg.NodeTimeout = silence
	l := locker(t, cfg)
	lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
	freeze(t, servers[0])
	freeze(t, servers[1])
	ctx, cancel := context.WithTimeout(t.Context(), silence/4)
	defer cancel()
	within(t, 10*silence, "an extension with a context", func() {
		if err := lease.Extend(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	extended := make(chan error, 1)
	go func() { extended <- lease.Extend(t.Context(), time.Minute) }()
	eventually(t, 10*time.Second, "it extends", lease.Extending)
	within(t, 10*silence, "release", func() {
		if err := lease.Release(t.Context()); !errors.Is(err, lock.ErrNoQuorum) {
			t.Errorf("got %v", err)
		}
	})
	if err := <-extended; !errors.Is(err, lock.ErrReleased) {
		t.Errorf("the extension: %v", err)
	}
}

// Otherwise an extension would continue until its lease ends.
func TestAnExtensionEndsWithItsLocker(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
	must(t, l.Close())
	promptly(t, "extend", func() {
		if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}
