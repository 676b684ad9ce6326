package lock_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

func TestExtendMovesTheDeadline(t *testing.T) {
	t.Parallel()
	groups(t, []int{1, 3}, func(t *testing.T, cfg lock.Config, _ []*memredis.Node) {
		l := started(t, cfg)
		begun := time.Now()
		lease := leased(t, l, "r")
		// One hundredth of the TTL, and two milliseconds.
		if valid := lease.Deadline().Time().Sub(begun); valid != lock.DefaultTTL*99/100-2*time.Millisecond {
			t.Errorf("valid for %v", valid)
		}
		time.Sleep(20 * time.Second)
		must(t, lease.Extend(t.Context(), time.Minute))
		if valid := lease.Deadline().Left(); valid != time.Minute*99/100-2*time.Millisecond {
			t.Errorf("extended, it is valid for %v", valid)
		}
		synctest.Wait()
		ins, err := leasing.One(l.Inspect(t.Context(), "r"))
		if err != nil || !ins.Locked || ins.TTL != time.Minute || ins.Token != token(t, lease) {
			t.Errorf("inspect: %+v, %v", ins, err)
		}
		time.Sleep(lease.Deadline().Left() - time.Nanosecond)
		token(t, lease)
		time.Sleep(time.Nanosecond)
		if _, err := lease.Grant(); !errors.Is(err, lock.ErrLost) {
			t.Errorf("at its deadline: %v", err)
		}
	})
}

func TestAShorterExtensionShortensTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		lease := leased(t, l, "r")
		must(t, lease.Extend(t.Context(), time.Second))
		begun := time.Now()
		<-lease.Done()
		if lived := time.Since(begun); lived != l.Validity(lock.WithTTL(time.Second)) {
			t.Errorf("it lived for %v", lived)
		}
		if _, err := lease.Grant(); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("grant: %v", err)
		}
	})
}

func TestExtendRefusesBadTTLs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		lease := leased(t, l, "r")
		before := lease.Deadline().Time()
		for _, ttl := range []time.Duration{0, -time.Second, time.Microsecond, lock.DefaultMaxTTL + time.Millisecond} {
			var invalid *fence.InvalidError
			if err := lease.Extend(t.Context(), ttl); !errors.As(err, &invalid) || invalid.Field != "ttl" {
				t.Errorf("%v: %v", ttl, err)
			}
		}
		if token(t, lease); !lease.Deadline().Time().Equal(before) {
			t.Error("the deadline has moved")
		}
		must(t, lease.Release(t.Context()))
		if err := lease.Extend(t.Context(), time.Second); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("extend after release: %v", err)
		}
	})
}

func TestAnyProcessExtendsAndReleasesByReference(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		lease, other := leased(t, started(t, cfg), "r"), locker(t, cfg)
		valid, err := other.Extend(t.Context(), lease.Ref(), time.Minute)
		if want := other.Validity(lock.WithTTL(time.Minute)); err != nil || valid.Left() != want {
			t.Fatalf("extended for %v, %v; want %v", valid.Left(), err, want)
		}
		time.Sleep(lock.DefaultTTL)
		if _, err := other.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Fatalf("acquire: %v", err)
		}
		must(t, other.Release(t.Context(), lease.Ref()))
		if err := other.Release(t.Context(), lease.Ref()); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("second release: %v", err)
		}
		if _, err := other.Extend(t.Context(), lease.Ref(), time.Second); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("extend after release: %v", err)
		}
		leased(t, other, "r")
	})
}

func TestAForeignReferenceReleasesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		lease := leased(t, l, "r")
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
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("the lock is gone: %v", err)
		}
	})
}

// drops deletes a resource's lock on nodes, once everything that is on its way has arrived.
func drops(t *testing.T, resource string, nodes ...*memredis.Node) {
	t.Helper()
	synctest.Wait()
	for _, n := range nodes {
		if deleted := n.Client(t).Del(t.Context(), lock.DefaultKeyPrefix+":lock:"+resource).Val(); deleted != 1 {
			t.Fatalf("%d locks were deleted", deleted)
		}
	}
}

func TestExtensionNeverCreatesALockAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease := leased(t, l, "r")
		drops(t, "r", nodes...)
		if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
			t.Errorf("extend: %v", err)
		}
		if _, err := lease.Grant(); !errors.Is(err, lock.ErrLost) {
			t.Errorf("grant: %v", err)
		}
		unlocked(t, l, "r")
		if next := leased(t, l, "r"); token(t, next) <= lease.Ref().Token {
			t.Error("token fell")
		}
	})
}

func TestExtensionSucceedsWhileAQuorumStillHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 5)
		l := started(t, cfg)
		lease := leased(t, l, "r")
		drops(t, "r", nodes[:2]...)
		if err := lease.Extend(t.Context(), time.Minute); err != nil {
			t.Fatalf("two of five gone: %v", err)
		}
		drops(t, "r", nodes[2])
		if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("three of five gone: %v", err)
		}
	})
}

func TestReleaseGoesOnWhenTheCallersContextHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := l.TryAcquire(ctx, "r")
		must(t, err)
		cancel()
		synctest.Wait()
		select {
		case <-lease.Done():
			t.Fatal("the lease ended with the context it was acquired under")
		default:
		}
		must(t, lease.Release(ctx))
		unlocked(t, l, "r")
	})
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
