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
	held, err := leasing.One(holder.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "b", TTL: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	return s, holder, held, func() ([]leasing.Lease, error) {
		return source.Acquire(ctx, leasing.UntilDone, []leasing.Request{request("b"), request("a")}...)
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

// inTime checks that renewals were asked for a quarter to a third of a TTL after the one before. The first counts from
// the deadline, and so comes earlier by the margin.
func inTime(t *testing.T, renewed []time.Duration, last, until time.Duration) {
	t.Helper()
	for _, at := range append(slices.Clone(renewed), until) {
		if gap := at - last; gap > ttl/3 || gap < ttl/4-(ttl-good(ttl)) && at != until {
			t.Errorf("renewed after %v; one came %v after the one before", renewed, gap)
		}
		last = at
	}
}

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
		inTime(t, s.called("extend"), 0, waits)
		if left := leases[1].Deadline.Left(); left < ttl/2 || left > ttl {
			t.Errorf("the renewed lease is good for %v", left)
		}
		if !s.lives("a") || !s.lives("b") {
			t.Errorf("a lives: %t, b lives: %t", s.lives("a"), s.lives("b"))
		}
	})
}

// The service is away for more than half of a TTL.
func TestARenewalThatFailsIsRepeatedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, holder, held, acquire := waitsForB(t.Context(), t)
		after(t, ttl*3/2, holder, held)
		go func() {
			time.Sleep(ttl / 5)
			s.leave(ttl * 7 / 12)
		}()
		if _, err := acquire(); err != nil {
			t.Fatal(err)
		}
		got := s.called("extend")
		inTime(t, got[:1], 0, got[0])
		tries := 1
		for ; got[tries-1] < ttl/5+ttl*7/12; tries++ { // each but the last one failed
			if got[tries]-got[tries-1] != ttl/12 {
				t.Errorf("tried after %v", got)
			}
		}
		inTime(t, got[tries:], got[tries-1], ttl*3/2)
	})
}

func TestAWaitEndsWhenALeaseThatItHasIsLost(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		extend func(leasing.Ref) error
		after  time.Duration
		within time.Duration
	}{
		"another has it":          {extend: func(leasing.Ref) error { return leasing.ErrLost }, after: ttl/4 - (ttl - good(ttl)), within: ttl / 12},
		"its deadline has passed": {extend: func(leasing.Ref) error { return leasing.ErrUnavailable }, after: good(ttl), within: ttl / 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, _, _, acquire := waitsForB(t.Context(), t)
				s.extend = one.extend
				_, err := acquire()
				if took := time.Since(s.begun); !errors.Is(err, leasing.ErrLost) || took < one.after || took > one.after+one.within {
					t.Errorf("%v after %v; want ErrLost after %v, or at most %v later", err, took, one.after, one.within)
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
			after(t, time.Second, holder, held)
			time.Sleep(2 * time.Second)
			return leasing.ErrLost
		}
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

// lossyStore answers no wait for b.
type lossyStore struct {
	store

	back chan string
}

func (s lossyStore) Wait(ctx context.Context, r leasing.Request, w *Waiter) (Taken, error) {
	if r.Resource != "b" {
		return s.store.Wait(ctx, r, w)
	}
	<-ctx.Done()
	return Taken{}, &KeptError{Err: context.Cause(ctx), GiveBack: func() { s.back <- r.Resource }}
}

// A repeat of the requests finds them only if it finds all.
func TestALeaseThatNoRepeatCanFindIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		st := lossyStore{store{s}, make(chan string, 1)}
		source, _, err := New(Config{Store: st, MinTTL: time.Second, MaxTTL: time.Hour, Clock: s.clock})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = source.Close() }()
		s.extend = func(leasing.Ref) error { return leasing.ErrLost }
		a, b := request("a"), request("b")
		for _, r := range []*leasing.Request{&a, &b} {
			r.SealHash, r.Repeatable = make([]byte, 32), true
		}
		if _, err := source.Acquire(t.Context(), leasing.UntilDone, a, b); !errors.Is(err, leasing.ErrLost) {
			t.Error(err)
		}
		if len(st.back) != 1 || s.lives("a") {
			t.Errorf("%d given back; a lives: %t", len(st.back), s.lives("a"))
		}
	})
}
