package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

func acquireAll(t *testing.T, l *lock.Locker, names []string, opts ...lock.AcquireOption) []*lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	leases, err := l.AcquireAll(ctx, names, opts...)
	must(t, err)
	return leases
}

func TestAcquireAllLeavesNothingWhenOneIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		leased(t, l, "b")
		const patience = 5 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		begun := time.Now()
		_, err := l.AcquireAll(ctx, []string{"c", "b", "a"})
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lock.ErrHeld) || took != patience {
			t.Errorf("after %v: %v", took, err)
		}
		unlocked(t, l, "a")
		unlocked(t, l, "c")
	})
}

func TestCallersOfAcquireAllNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Armer = &register{}
		l, other := started(t, cfg), locker(t, cfg)
		slowly(nodes, 10*time.Millisecond)
		const callers, each = 4, 5
		names := []string{"a", "b", "c"}
		ctx, cancel := context.WithTimeout(t.Context(), callers*each*time.Second)
		defer cancel()
		var done sync.WaitGroup
		for i := range callers {
			slices.Reverse(names)
			l, mine := []*lock.Locker{l, other}[i/2], slices.Clone(names)
			done.Go(func() {
				for range each {
					leases, err := l.AcquireAll(ctx, mine)
					if err != nil {
						t.Error(err)
						return
					}
					for _, lease := range leases {
						if _, err := lease.Grant(); err != nil {
							t.Error(err)
						}
						lease.ReleaseAsync()
					}
				}
			})
		}
		done.Wait()
	})
}

func TestAcquireAllKeepsWhatItHasWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		held := leased(t, l, "z", lock.WithTTL(lock.DefaultMaxTTL))
		leases, err := l.AcquireAll(t.Context(), []string{"a", "z"}, lock.WithTTL(lock.DefaultMaxTTL/5))
		must(t, err)
		if _, err := held.Grant(); !errors.Is(err, lock.ErrLost) {
			t.Errorf("the holder before: %v", err)
		}
		for _, lease := range leases {
			must(t, lease.Release(t.Context()))
		}
	})
}

// The wait for each resource is shorter than the time after which a lock is renewed; all waits together are longer than
// the TTL.
func TestAcquireAllKeepsWhatItHasOverSeveralShortWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l, other := started(t, cfg), locker(t, cfg)
		names := []string{"a", "b", "c", "d", "e", "f", "g"}
		held := make([]*lock.Lease, len(names))
		for i, name := range names {
			held[i] = leased(t, other, name, lock.WithTTL(lock.DefaultMaxTTL))
		}
		var releases sync.WaitGroup
		releases.Go(func() {
			for _, lease := range held {
				time.Sleep(lock.DefaultTTL / 4)
				check(t, lease.Release(t.Context()))
			}
		})
		leases, err := l.AcquireAll(t.Context(), names)
		must(t, err)
		releases.Wait()
		for _, lease := range leases {
			must(t, lease.Release(t.Context()))
		}
	})
}

// ordered is a fence that notes in which order several resources were armed.
type ordered struct {
	register
	orders [][]string
}

func (r *ordered) Arm(ctx context.Context, all ...fence.Arming) error {
	err := r.register.Arm(ctx, all...)
	if err == nil {
		var order []string
		for _, a := range all {
			order = append(order, a.Resource)
		}
		r.orders = append(r.orders, order)
	}
	return err
}

func TestAcquireAllArmsOnceInOneOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		fences := &ordered{}
		cfg.Armer = fences
		l := started(t, cfg)
		fences.tokens = map[string]fence.Token{"b": 70, "c": 90}
		leases := acquireAll(t, l, []string{"c", "a", "b"})
		if len(fences.orders) != 1 || !slices.Equal(fences.orders[0], []string{"a", "b", "c"}) {
			t.Errorf("armed %v", fences.orders)
		}
		for i, want := range []fence.Token{91, 1, 71} {
			if got := token(t, leases[i]); got != want {
				t.Errorf("%d: token %d; want %d", i, got, want)
			}
		}
	})
}
