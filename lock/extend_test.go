package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/lock"
)

// The connections of frozen nodes end, and with them the rounds.
func TestAnExtensionIsTriedAgainWhileItsLeaseHasTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		synctest.Wait()
		nodes[0].Freeze()
		nodes[2].Freeze()
		extended := make(chan error, 1)
		go func() { extended <- lease.Extend(t.Context(), time.Minute) }()
		time.Sleep(lock.DefaultTTL / 2)
		if len(extended) > 0 {
			t.Fatalf("ended with %v while two of three nodes stood still", <-extended)
		}
		thawed := time.Now()
		nodes[0].Thaw()
		must(t, <-extended)
		// A pause between two rounds is an eighth of the time that is left, and a second at most.
		if took := time.Since(thawed); took > 4*time.Second {
			t.Errorf("extended %v after the node came back", took)
		}
		if lasts := lease.Deadline().Left(); lasts <= lock.DefaultTTL || lasts > time.Minute {
			t.Errorf("the lease lasts for another %v", lasts)
		}
		nodes[2].Thaw()
	})
}

func TestAnExtensionEndsWithItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		synctest.Wait()
		nodes[0].Freeze()
		err := lease.Extend(t.Context(), time.Minute)
		if late := lease.Deadline().Since(); !errors.Is(err, lock.ErrLost) || late != 0 {
			t.Errorf("%v after the deadline: %v", late, err)
		}
		nodes[0].Thaw()
	})
}

// A release, or the end of the caller's context, ends an extension that waits for its nodes.
func TestAReleaseWaitsForNoExtension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		synctest.Wait()
		nodes[0].Freeze()
		nodes[1].Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		if err := lease.Extend(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		extended := make(chan error, 1)
		go func() { extended <- lease.Extend(t.Context(), time.Minute) }()
		time.Sleep(time.Second)
		if !lease.Extending() {
			t.Error("it does not extend")
		}
		begun = time.Now()
		if err := lease.Release(t.Context()); !errors.Is(err, lock.ErrNoQuorum) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begun); took != lock.DefaultNodeTimeout {
			t.Errorf("the release took %v", took)
		}
		if err := <-extended; !errors.Is(err, lock.ErrReleased) {
			t.Errorf("the extension: %v", err)
		}
		nodes[0].Thaw()
		nodes[1].Thaw()
	})
}

// Otherwise an extension would continue until its lease ends.
func TestAnExtensionEndsWithItsLocker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		synctest.Wait()
		nodes[0].Freeze()
		extended := make(chan error, 1)
		go func() { extended <- lease.Extend(t.Context(), time.Minute) }()
		time.Sleep(5 * time.Second)
		begun := time.Now()
		go func() { check(t, l.Close()) }()
		if err := <-extended; !errors.Is(err, lock.ErrClosed) || time.Since(begun) != 0 {
			t.Errorf("%v after Close: %v", time.Since(begun), err)
		}
		if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("afterwards: %v", err)
		}
		nodes[0].Thaw()
	})
}
