package leasingtest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

func oneHolder(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	lease := take(t, a, request(TTL))
	for name, s := range map[string]leasing.Source{"the same process": a, "another process": b} {
		_, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, request(TTL)))
		var held *leasing.HeldError
		if !errors.As(err, &held) || !errors.Is(err, leasing.ErrHeld) || !leasing.Retryable(err) {
			t.Fatalf("%s: %v; want a retryable HeldError", name, err)
		}
		if held.Resource != lease.Grant.Resource || held.Holder != "worker-a" || held.RetryAfter <= 0 || held.RetryAfter > TTL {
			t.Errorf("%s: %+v", name, held)
		}
	}
	release(t, a, lease)
}

func tokensRise(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	var last fence.Token
	for i := range 12 {
		s := []leasing.Source{a, b}[i%2]
		lease := take(t, s, request(TTL))
		higher(t, lease.Grant.Token, last)
		last = lease.Grant.Token
		release(t, s, lease)
	}
}

// contended has callers of two processes acquire in turn. It checks that only one holds at a time, and that each
// token is higher than all earlier ones.
func contended(t testing.TB, open Open) {
	const callers, each = 3, 6
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var holders atomic.Int32
	var last atomic.Int64
	var done sync.WaitGroup
	for range 2 {
		s := source(t, open, nil)
		for range callers {
			done.Go(func() {
				for range each {
					lease, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, request(TTL)))
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					if n := holders.Add(1); n != 1 {
						t.Errorf("%d holders at the same time", n)
					}
					before := last.Swap(int64(lease.Grant.Token))
					higher(t, lease.Grant.Token, fence.Token(before))
					holders.Add(-1)
					if err := s.Release(ctx, lease.Ref()); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
	}
	done.Wait()
}

func independent(t testing.TB, open Open) {
	s := source(t, open, nil)
	r := request(TTL)
	first := take(t, s, r)
	other := r
	other.Resource = "orders/1002"
	second := take(t, s, other)
	release(t, s, first)
	third := take(t, s, r)
	if first.Grant.Seal.Equal(second.Grant.Seal) || first.Grant.Seal.Equal(third.Grant.Seal) {
		t.Error("two acquisitions have the same seal")
	}
	if first.Owner == third.Owner || first.Owner == second.Owner {
		t.Error("two acquisitions have the same owner")
	}
	release(t, s, second)
	release(t, s, third)
}

func releaseFrees(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	for range 5 {
		lease := take(t, a, request(TTL))
		release(t, a, lease)
		next := take(t, b, request(TTL))
		release(t, b, next)
		if err := a.Release(t.Context(), lease.Ref()); !errors.Is(err, leasing.ErrLost) {
			t.Errorf("second release: %v; want ErrLost", err)
		}
	}
}

// waiting acquires in the background. The call waits when waiting returns, or has ended.
func waiting(ctx context.Context, t testing.TB, s leasing.Source, r leasing.Request) (<-chan leasing.Lease, <-chan error) {
	t.Helper()
	leases, errs := make(chan leasing.Lease, 1), make(chan error, 1)
	started(t, func() {
		lease, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, r))
		if err != nil {
			errs <- err
			return
		}
		leases <- lease
	})
	return leases, errs
}

func got(t testing.TB, leases <-chan leasing.Lease, errs <-chan error) leasing.Lease {
	t.Helper()
	select {
	case lease := <-leases:
		return lease
	case err := <-errs:
		t.Fatalf("waiting: %v", err)
	case <-time.After(patience):
		t.Fatalf("the waiter has nothing after %v", patience)
	}
	return leasing.Lease{}
}

func releaseWakes(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	for name, s := range map[string]leasing.Source{"the same process": a, "another process": b} {
		lease := take(t, a, request(TTL)) // outlives the rule: only its release can end the wait
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		leases, errs := waiting(ctx, t, s, request(TTL))
		select {
		case <-leases:
			t.Fatalf("%s: two holders", name)
		case <-time.After(50 * time.Millisecond):
		}
		release(t, a, lease)
		next := got(t, leases, errs)
		cancel()
		higher(t, next.Grant.Token, lease.Grant.Token)
		release(t, s, next)
	}
}

func turns(t testing.TB, open Open) {
	s := source(t, open, nil)
	lease := take(t, s, request(TTL))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	const callers = 4
	order := make(chan int, callers)
	var done sync.WaitGroup
	done.Add(callers)
	for i := range callers { // each stands in the line before the next one calls
		started(t, func() {
			defer done.Done()
			mine, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, request(TTL)))
			if err != nil {
				t.Errorf("caller %d: %v", i, err)
				return
			}
			order <- i
			if err := s.Release(ctx, mine.Ref()); err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	release(t, s, lease)
	done.Wait()
	close(order)
	want := 0
	for i := range order {
		if i != want {
			t.Errorf("caller %d came as number %d", i, want)
		}
		want++
	}
}

func waitForExpiry(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	lease := take(t, a, request(short))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	leases, errs := waiting(ctx, t, b, request(TTL))
	next := got(t, leases, errs)
	if left := lease.Deadline.Left(); left > 0 {
		t.Errorf("another holds the resource %v before the deadline", left)
	}
	higher(t, next.Grant.Token, lease.Grant.Token)
	release(t, b, next)
}

func waitForContext(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	lease := take(t, a, request(TTL))
	ctx, cancel := context.WithTimeout(t.Context(), short) // by then they know that it is held
	defer cancel()
	ends := make(map[string]func())
	for name, s := range map[string]leasing.Source{"the same process": a, "another process": b} {
		leases, errs := waiting(ctx, t, s, request(TTL))
		ends[name] = func() {
			select {
			case err := <-errs:
				if !errors.Is(err, leasing.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v; want ErrHeld joined with the context's error", name, err)
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %q; want one line", name, err)
				}
			case <-leases:
				t.Errorf("%s: two holders", name)
			case <-time.After(short + patience):
				t.Errorf("%s: the wait goes on although its context has ended", name)
			}
			if ctx.Err() == nil {
				t.Errorf("%s: the wait ended before its context", name)
			}
		}
	}
	for _, end := range ends {
		end()
	}
	release(t, a, lease)
	release(t, b, take(t, b, request(TTL))) // the waiters have left no trace
}

func endedContext(t testing.TB, open Open) {
	s := source(t, open, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, wait := range ways {
		if _, err := s.Acquire(ctx, wait, request(TTL)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v; want the context's error", name, err)
		}
	}
	lease := takeOnceFree(t, s, request(TTL))
	if err := s.Release(ctx, lease.Ref()); err != nil {
		t.Errorf("release with an ended context: %v; it must be carried out", err)
	}
	release(t, s, take(t, s, request(TTL)))
}
