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
		_, err := s.TryAcquire(t.Context(), request(TTL))
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
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience(t))
	defer cancel()
	var holders atomic.Int32
	var last atomic.Int64
	var done sync.WaitGroup
	for range 2 {
		s := source(t, open, nil)
		for range callers {
			done.Go(func() {
				for range each {
					lease, err := s.Acquire(ctx, request(TTL))
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

// waiting acquires in the background.
func waiting(ctx context.Context, s leasing.Source, r leasing.Request) (<-chan leasing.Lease, <-chan error) {
	leases, errs := make(chan leasing.Lease, 1), make(chan error, 1)
	go func() {
		lease, err := s.Acquire(ctx, r)
		if err != nil {
			errs <- err
			return
		}
		leases <- lease
	}()
	return leases, errs
}

func got(t testing.TB, leases <-chan leasing.Lease, errs <-chan error) leasing.Lease {
	t.Helper()
	select {
	case lease := <-leases:
		return lease
	case err := <-errs:
		t.Fatalf("waiting: %v", err)
	case <-time.After(patience(t)):
		t.Fatalf("the waiter has nothing after %v", patience(t))
	}
	return leasing.Lease{}
}

func releaseWakes(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	for name, s := range map[string]leasing.Source{"the same process": a, "another process": b} {
		lease := take(t, a, request(TTL)) // outlives the rule: only its release can end the wait
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience(t))
		own := &lookedFor{Context: ctx, looked: make(chan struct{})}
		leases, errs := waiting(own, s, request(TTL))
		own.wait(t)
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

// lookedFor is a context that reports calls of its Done.
type lookedFor struct {
	context.Context
	once   sync.Once
	looked chan struct{}
}

func (c *lookedFor) Done() <-chan struct{} {
	c.once.Do(func() { close(c.looked) })
	return c.Context.Done()
}

// wait returns after a call of Done, or when the patience is over.
func (c *lookedFor) wait(t testing.TB) {
	t.Helper()
	select {
	case <-c.looked:
	case <-time.After(patience(t)):
	}
}

func turns(t testing.TB, open Open) {
	s := source(t, open, nil)
	lease := take(t, s, request(TTL))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience(t))
	defer cancel()
	const callers = 4
	order := make(chan int, callers)
	var done sync.WaitGroup
	for i := range callers {
		own := &lookedFor{Context: ctx, looked: make(chan struct{})}
		done.Go(func() {
			mine, err := s.Acquire(own, request(TTL))
			if err != nil {
				t.Errorf("caller %d: %v", i, err)
				return
			}
			order <- i
			if err := s.Release(ctx, mine.Ref()); err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
		})
		// It calls before the next one: a waiter calls Done when it stands in the line, or soon before.
		own.wait(t)
		<-time.After(100 * time.Millisecond)
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
	ctx, cancel := context.WithTimeout(t.Context(), patience(t))
	defer cancel()
	leases, errs := waiting(ctx, b, request(TTL))
	next := got(t, leases, errs)
	if left := time.Until(lease.Deadline); left > 0 {
		t.Errorf("another holds the resource %v before the deadline", left)
	}
	higher(t, next.Grant.Token, lease.Grant.Token)
	release(t, b, next)
}

func waitForContext(t testing.TB, open Open) {
	a, b := source(t, open, nil), source(t, open, nil)
	lease := take(t, a, request(TTL))
	for name, s := range map[string]leasing.Source{"the same process": a, "another process": b} {
		for within := 100 * time.Millisecond; !endsInVain(t, name, s, within); within *= 2 {
			t.Logf("%s: within %v it did not learn that the resource is held", name, within)
		}
	}
	release(t, a, lease)
	release(t, b, take(t, b, request(TTL))) // the waiters have left no trace
}

// endsInVain waits for a held resource until a context ends, and checks the error. It reports false if the context
// may have ended, on a busy machine, before the source could know that the resource is held.
func endsInVain(t testing.TB, name string, s leasing.Source, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	leases, errs := waiting(ctx, s, request(TTL))
	select {
	case err := <-errs:
		held, ended := errors.Is(err, leasing.ErrHeld), errors.Is(err, context.DeadlineExceeded)
		if ended && !held && 2*within < patience(t) {
			return false
		}
		if !held || !ended {
			t.Errorf("%s: %v; want ErrHeld joined with the context's error", name, err)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q; want one line", name, err)
		}
	case <-leases:
		t.Errorf("%s: two holders", name)
	case <-time.After(within + patience(t)):
		t.Errorf("%s: the wait goes on although its context has ended", name)
	}
	return true
}

func endedContext(t testing.TB, open Open) {
	s := source(t, open, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, acquire := range map[string]func(context.Context, leasing.Request) (leasing.Lease, error){"try": s.TryAcquire, "acquire": s.Acquire} {
		if _, err := acquire(ctx, request(TTL)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v; want the context's error", name, err)
		}
	}
	eventually(t, "nothing stays locked", func() bool {
		ins, err := s.Inspect(t.Context(), request(TTL).Resource)
		return err == nil && !ins.Locked
	})
	lease := take(t, s, request(TTL))
	if err := s.Release(ctx, lease.Ref()); err != nil {
		t.Errorf("release with an ended context: %v; it must be carried out", err)
	}
	release(t, s, take(t, s, request(TTL)))
}
