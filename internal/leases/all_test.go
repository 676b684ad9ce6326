package leases

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// waitsForB has a process take a, and wait for b, which another process holds for an hour.
func waitsForB(ctx context.Context, t *testing.T) (s *service, holder *Source, held leasing.Lease, acquire func() ([]leasing.Lease, error)) {
	t.Helper()
	s = newService()
	holder = s.process(t, nil)
	source := s.process(t, nil)
	held, err := holder.TryAcquire(t.Context(), leasing.Request{Resource: "b", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s, holder, held, func() ([]leasing.Lease, error) {
		return source.AcquireAll(ctx, []leasing.Request{request("b"), request("a")})
	}
}

// after ends a lease when some time has passed.
func after(t *testing.T, d time.Duration, holder *Source, held leasing.Lease) {
	t.Helper()
	go func() {
		time.Sleep(d)
		if err := holder.Release(t.Context(), held.Ref()); err != nil {
			t.Error(err)
		}
	}()
}

// A look each sixth of a TTL extends a lease with less than two thirds of its time left.
func TestLeasesAreRenewedWhileTheCallWaitsForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waits = 10*ttl + time.Second
		s, holder, held, acquire := waitsForB(t.Context(), t)
		after(t, waits, holder, held)
		leases, err := acquire()
		if err != nil || time.Since(s.begun) != waits {
			t.Fatalf("%v after %v", err, time.Since(s.begun))
		}
		var want []time.Duration
		for at := ttl / 3; at < waits; at += ttl / 3 {
			want = append(want, at)
		}
		if got := s.called("extend"); !slices.Equal(got, want) {
			t.Errorf("renewed after %v; want %v", got, want)
		}
		if left := time.Until(leases[1].Deadline); left < ttl/2 || left > ttl {
			t.Errorf("the renewed lease is good for %v", left)
		}
		if !s.lives("a") || !s.lives("b") {
			t.Errorf("a lives: %t, b lives: %t", s.lives("a"), s.lives("b"))
		}
	})
}

// The service is away for more than half of a TTL.
func TestARenewalThatFailsIsRepeatedAtTheNextLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, holder, held, acquire := waitsForB(t.Context(), t)
		after(t, ttl*3/2, holder, held)
		go func() {
			time.Sleep(ttl / 4)
			s.leave(ttl * 7 / 12)
		}()
		if _, err := acquire(); err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{ttl / 3, ttl / 2, ttl * 2 / 3, ttl * 5 / 6, ttl*5/6 + ttl/3, ttl*5/6 + ttl*2/3}
		if got := s.called("extend"); !slices.Equal(got, want) {
			t.Errorf("renewed after %v; want %v", got, want)
		}
	})
}

func TestAWaitEndsWhenALeaseThatItHasIsLost(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		extend func(leasing.Ref) error
		away   time.Duration
		ends   time.Duration
	}{
		"another has it":          {extend: func(leasing.Ref) error { return leasing.ErrLost }, ends: ttl / 3},
		"its deadline has passed": {extend: func(leasing.Ref) error { return leasing.ErrUnavailable }, ends: ttl},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, _, _, acquire := waitsForB(t.Context(), t)
				s.extend = one.extend
				if _, err := acquire(); !errors.Is(err, leasing.ErrLost) || time.Since(s.begun) != one.ends {
					t.Errorf("%v after %v; want ErrLost after %v", err, time.Since(s.begun), one.ends)
				}
				if s.lives("a") {
					t.Error("a lives")
				}
				if s.mu.Lock(); len(s.queues["b"]) > 0 {
					t.Errorf("%d still wait for b", len(s.queues["b"]))
				}
				s.mu.Unlock()
			})
		})
	}
}

// The last resource becomes free while the renewal that finds the loss is under way.
func TestALeaseThatIsKnownToBeLostIsNotGiven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, holder, held, acquire := waitsForB(t.Context(), t)
		s.extend = func(leasing.Ref) error {
			time.Sleep(2 * time.Second)
			return leasing.ErrLost
		}
		after(t, ttl/3+time.Second, holder, held)
		if got, err := acquire(); !errors.Is(err, leasing.ErrLost) {
			t.Errorf("%v, %v; want ErrLost", got, err)
		}
		if s.lives("b") {
			t.Error("b is held, although the call has failed")
		}
	})
}

// What was taken is given back before the call returns, although its context has ended.
func TestAWaitThatItsContextEndsKeepsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
		defer cancel()
		s, _, _, acquire := waitsForB(ctx, t)
		_, err := acquire()
		if !errors.Is(err, leasing.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) || time.Since(s.begun) != 3*ttl {
			t.Errorf("%v after %v; want ErrHeld joined with the context's error", err, time.Since(s.begun))
		}
		if freed := s.called("free"); s.lives("a") || len(freed) != 1 || s.ended > 0 {
			t.Errorf("a lives: %t; freed after %v, %d times with an ended context", s.lives("a"), freed, s.ended)
		}
		renewed := len(s.called("extend"))
		time.Sleep(2 * ttl)
		if more := s.called("extend"); renewed == 0 || len(more) > 0 {
			t.Errorf("%d renewals during the wait, and after it at %v", renewed, more)
		}
	})
}
