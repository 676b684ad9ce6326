package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestAcquireAllTakesAllInTheCallersOrder(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		names := []string{"b", "a", "c"}
		leases := acquireAll(t, l, names)
		for i, lease := range leases {
			if lease.Ref().Resource != names[i] {
				t.Errorf("lease %d is of %q", i, lease.Ref().Resource)
			}
			token(t, lease)
			if _, err := tryAcquire(t, l, names[i]); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("%q: %v", names[i], err)
			}
			release(t, lease)
		}
	})
}

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
	l := started(t, shared(t, 3))
	held := acquire(t, l, "b")
	testenv.Paced(t, 500*time.Millisecond, func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := l.AcquireAll(ctx, []string{"c", "b", "a"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if errors.Is(err, lock.ErrHeld) {
			return nil
		}
		return fmt.Errorf("it had not found that one is held: %w", err)
	})
	free(t, l, "a")
	free(t, l, "c")
	release(t, held)
}

func TestCallersOfAcquireAllNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	cfg.Armer = &register{}
	l := started(t, cfg)
	names := []string{"a", "b", "c"}
	var done sync.WaitGroup
	for range 4 {
		slices.Reverse(names)
		mine := slices.Clone(names)
		done.Go(func() {
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				leases, err := l.AcquireAll(ctx, mine)
				cancel()
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
}

func TestAcquireAllKeepsWhatItHasWhileItWaits(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	testenv.Paced(t, 600*time.Millisecond, func(ttl time.Duration) error {
		held := acquire(t, l, "z", lock.WithTTL(2*ttl+ttl/2))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		leases, err := l.AcquireAll(ctx, []string{"a", "z"}, lock.WithTTL(ttl))
		if errors.Is(err, lock.ErrLost) {
			held.ReleaseAsync()
			return err // not renewed in time
		}
		must(t, err)
		if _, err := held.Grant(); err == nil {
			t.Error("two holders")
		}
		for _, lease := range leases {
			release(t, lease)
		}
		return nil
	})
}

// The wait for each resource is shorter than the time after which a lock is renewed; all waits together are longer than
// the TTL.
func TestAcquireAllKeepsWhatItHasOverSeveralShortWaits(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 1)
	l, other := started(t, cfg), locker(t, cfg)
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	testenv.Paced(t, 1500*time.Millisecond, func(ttl time.Duration) error {
		held := make([]*lock.Lease, len(names))
		for i, name := range names {
			held[i] = acquire(t, other, name, lock.WithTTL(4*time.Minute))
		}
		var releases sync.WaitGroup
		defer releases.Wait()
		releases.Go(func() {
			for _, lease := range held {
				<-time.After(ttl / 4)
				check(t, lease.Release(t.Context()))
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		leases, err := l.AcquireAll(ctx, names, lock.WithTTL(ttl))
		if errors.Is(err, lock.ErrLost) {
			return err // not renewed in time
		}
		must(t, err)
		for _, lease := range leases {
			release(t, lease)
		}
		return nil
	})
}

// allRegister arms several resources in one call.
type allRegister struct {
	register
	orders [][]string
}

func (r *allRegister) ArmAll(_ context.Context, all []fence.Arming) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var order []string
	for _, a := range all {
		order = append(order, a.Resource)
		if recorded := r.tokens[a.Resource]; recorded >= a.Token {
			return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: recorded}
		}
	}
	r.orders = append(r.orders, order)
	for _, a := range all {
		r.tokens[a.Resource] = a.Token
	}
	return nil
}

func TestAcquireAllArmsOnceInOneOrder(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, time.Second, func(time.Duration) error {
		cfg := shared(t, 3)
		fences := &allRegister{register: register{tokens: map[string]fence.Token{"b": 70, "c": 90}}}
		cfg.Armer = fences
		l := started(t, cfg)
		leases := acquireAll(t, l, []string{"c", "a", "b"})
		if len(fences.orders) != 1 || !slices.Equal(fences.orders[0], []string{"a", "b", "c"}) {
			t.Errorf("armed %v", fences.orders)
		}
		var err error
		for i, want := range []fence.Token{91, 1, 71} {
			if got := token(t, leases[i]); got != want {
				err = fmt.Errorf("%d: token %d; want %d", i, got, want) // or a round was too late, and was repeated
			}
			release(t, leases[i])
		}
		return err
	})
}

func TestAcquireAllRefusesBadNames(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 1))
	for _, names := range [][]string{nil, {"a", "a"}, {"a", ""}, {"a", "b*"}} {
		if _, err := l.AcquireAll(t.Context(), names); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %v", names, err)
		}
	}
	free(t, l, "a")
}
