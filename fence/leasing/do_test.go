package leasing_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ttl is the TTL of every lease here.
const ttl = 30 * time.Second

// shelf is a source with one resource. Its leases end by the clock.
type shelf struct {
	leasing.Source // its other methods

	clock     *clocktest.Clock // of the process that holds the lease
	begun     time.Time
	answers   func() error  // of renewals; nil: each succeeds
	answering time.Duration // how long a renewal takes

	mu       sync.Mutex
	until    time.Time
	renewals []time.Duration // when they were asked for
	released int
}

func newShelf() *shelf { return &shelf{clock: clocktest.New(), begun: time.Now()} }

func (s *shelf) Acquire(_ context.Context, _ leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	r := all[0]
	if err := fence.ValidateResource(r.Resource); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(r.TTL)
	return []leasing.Lease{{
		Grant: fence.Grant{Resource: r.Resource, Token: 1, Seal: fence.NewSeal()}, Owner: "me", Deadline: s.clock.Now().Add(r.TTL),
	}}, nil
}

func (s *shelf) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	asked, deadline := time.Now(), s.clock.Now().Add(ttl)
	s.mu.Lock()
	s.renewals = append(s.renewals, asked.Sub(s.begun))
	s.mu.Unlock()
	select {
	case <-time.After(s.answering):
	case <-ctx.Done():
		return clock.Instant{}, ctx.Err()
	}
	if s.answers != nil {
		if err := s.answers(); err != nil {
			return clock.Instant{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ref.Owner != "me" || !time.Now().Before(s.until) {
		return clock.Instant{}, leasing.ErrLost
	}
	s.until = asked.Add(ttl)
	return deadline, nil
}

func (s *shelf) Release(ctx context.Context, _ leasing.Ref) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released++
	s.until = time.Time{}
	return nil
}

// held reports whether the lease lives, and whether it was released once.
func (s *shelf) held() (lives, released bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until), s.released == 1
}

// asked is when renewals were asked for.
func (s *shelf) asked() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewals
}

// lived waits for the end of the work's context, and returns when that was.
func (s *shelf) lived(ctx context.Context) time.Duration {
	<-ctx.Done()
	return time.Since(s.begun)
}

func do(t *testing.T, s *shelf, renewal time.Duration, work func(context.Context) error) error {
	t.Helper()
	return leasing.Do(t.Context(), s, leasing.Request{Resource: "r", TTL: ttl}, renewal, func(ctx context.Context, g fence.Grant) error {
		if g.Resource != "r" || g.Token != 1 {
			t.Errorf("granted %v", g)
		}
		return work(ctx)
	})
}

func TestDoRenewsForAsLongAsTheWorkTakesAndReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, failed := newShelf(), errors.New("the work failed")
		err := do(t, s, 0, func(ctx context.Context) error {
			for range 200 {
				time.Sleep(ttl / 10)
				if lives, _ := s.held(); !lives || ctx.Err() != nil {
					t.Fatalf("the lease is over: %v", context.Cause(ctx))
				}
			}
			return failed
		})
		lives, released := s.held()
		if !errors.Is(err, failed) || errors.Is(err, leasing.ErrLost) || lives || !released {
			t.Errorf("%v; it lives: %t, was released: %t", err, lives, released)
		}
		last, asked := time.Duration(0), s.asked()
		for i, at := range asked {
			if since := at - last; since < ttl/4 || since > ttl/3 {
				t.Errorf("renewal %d came %v after the one before; want a quarter to a third of %v", i+1, since, ttl)
			}
			last = at
		}
		if len(asked) < 60 {
			t.Errorf("%d renewals", len(asked))
		}
	})
}

// Each answer comes so late that the next renewal is due at once.
func TestSlowRenewalsLoseNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		s.answering = 45 * ttl / 100
		if err := do(t, s, 0, func(ctx context.Context) error {
			select {
			case <-time.After(100 * ttl):
			case <-ctx.Done():
			}
			return nil
		}); err != nil {
			t.Errorf("%v; renewals at %v", err, s.asked())
		}
	})
}

// Leases that were acquired together are not renewed together.
func TestRenewalsComeAtRandomTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		times := make(map[time.Duration]bool)
		for range 8 {
			s := newShelf()
			if err := do(t, s, 0, func(context.Context) error { time.Sleep(ttl / 2); return nil }); err != nil {
				t.Fatal(err)
			}
			times[s.asked()[0]] = true
		}
		if len(times) < 2 {
			t.Errorf("all came after %v", times)
		}
	})
}

func TestDoReleasesIfTheWorkPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		defer func() {
			if lives, released := s.held(); recover() != "broken" || lives || !released {
				t.Errorf("it lives: %t, was released: %t", lives, released)
			}
		}()
		_ = do(t, s, 0, func(context.Context) error { panic("broken") })
	})
}

func TestDoReleasesAlsoIfItsContextHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, stop := newShelf(), errors.New("asked to stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := leasing.Do(ctx, s, leasing.Request{Resource: "r", TTL: ttl}, 0, func(ctx context.Context, _ fence.Grant) error {
			cancel(stop)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if _, released := s.held(); !errors.Is(err, stop) || errors.Is(err, leasing.ErrLost) || !released {
			t.Errorf("%v; released: %t", err, released)
		}
	})
}

func TestDoEndsTheWorksContextWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		s.answers = func() error { return leasing.ErrLost } // another has it
		err := do(t, s, 0, func(ctx context.Context) error {
			if lived := s.lived(ctx); len(s.asked()) != 1 || lived != s.asked()[0] {
				t.Errorf("the context ended after %v; the renewals: %v", lived, s.asked())
			}
			if !errors.Is(context.Cause(ctx), leasing.ErrLost) {
				t.Errorf("the context's cause: %v", context.Cause(ctx))
			}
			return nil
		})
		if _, released := s.held(); !errors.Is(err, leasing.ErrLost) || !released {
			t.Errorf("work under a lost lease: %v; released: %t", err, released)
		}
	})
}

func TestDoRenewsNoLongerThanAllowed(t *testing.T) {
	t.Parallel()
	for _, renewal := range []time.Duration{3 * ttl, leasing.DefaultRenewal} {
		synctest.Test(t, func(t *testing.T) {
			s := newShelf()
			err := do(t, s, renewal%leasing.DefaultRenewal, func(ctx context.Context) error { // 0 is the default
				lived := s.lived(ctx)
				if last := s.asked()[len(s.asked())-1]; last >= renewal || last < renewal-ttl/3 || lived != last+ttl {
					t.Errorf("the lease lived for %v; its last renewal came after %v", lived, last)
				}
				if why := context.Cause(ctx); !errors.Is(why, leasing.ErrLost) || !errors.Is(why, leasing.ErrCapped) {
					t.Errorf("the context's cause: %v", why)
				}
				return nil
			})
			if !errors.Is(err, leasing.ErrLost) {
				t.Error(err)
			}
		})
	}
}

// The servers are away for most of a TTL.
func TestARenewalThatMaySucceedLaterIsRepeatedUntilTheDeadline(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]time.Duration{"they return": ttl - ttl/12 - 1, "they stay away": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				s.answers = func() error {
					if time.Since(s.begun) < away {
						return leasing.ErrUnavailable
					}
					return nil
				}
				err := do(t, s, 0, func(ctx context.Context) error {
					select {
					case <-ctx.Done():
					case <-time.After(5 * ttl):
					}
					if away < ttl {
						return nil
					}
					if lived := time.Since(s.begun); lived != ttl || len(s.asked()) < 9 {
						t.Errorf("the lease lived for %v; the renewals: %v", lived, s.asked())
					}
					return nil
				})
				if lost := errors.Is(err, leasing.ErrLost); lost != (away > ttl) {
					t.Errorf("away for %v: %v", away, err)
				}
			})
		})
	}
}

func TestARenewalThatCannotSucceedIsNotRepeatedAndSaysWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, closed := newShelf(), errors.New("the source was closed")
		s.answers = func() error { return closed }
		err := do(t, s, 0, func(ctx context.Context) error {
			if lived := s.lived(ctx); lived != ttl || len(s.asked()) != 1 {
				t.Errorf("the lease lived for %v; the renewals: %v", lived, s.asked())
			}
			return nil
		})
		if !errors.Is(err, leasing.ErrLost) || !errors.Is(err, closed) {
			t.Errorf("%v; want ErrLost with the renewals' error", err)
		}
	})
}

func TestALeaseIsOverAfterASuspensionThatNoTimerNoticed(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(ctx context.Context) bool{
		"by Err": func(ctx context.Context) bool { return ctx.Err() != nil },
		"by Done": func(ctx context.Context) bool {
			<-ctx.Done() // it would end with the next renewal, too
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				err := do(t, s, 0, func(ctx context.Context) error {
					if s.clock.Suspend(ttl - time.Millisecond); ctx.Err() != nil {
						t.Errorf("over before its deadline: %v", context.Cause(ctx))
					}
					s.clock.Suspend(time.Millisecond)
					if !over(ctx) || !errors.Is(context.Cause(ctx), leasing.ErrLost) || time.Since(s.begun) > 0 {
						t.Errorf("%v later by the timers: %v", time.Since(s.begun), context.Cause(ctx))
					}
					return nil
				})
				if _, released := s.held(); !errors.Is(err, leasing.ErrLost) || !released {
					t.Errorf("%v; released: %t", err, released)
				}
			})
		})
	}
}

// A server counts the TTL from when it renews. The process may be paused between the answer and its next step.
func TestADeadlineIsCountedFromBeforeTheRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		s.answering = time.Second
		s.answers = func() error {
			if len(s.asked()) > 1 {
				return errors.New("no more renewals")
			}
			s.clock.Suspend(ttl / 2)
			return nil
		}
		err := do(t, s, 0, func(ctx context.Context) error {
			<-ctx.Done()
			if lived := time.Since(s.begun) + ttl/2; lived > s.asked()[0]+ttl || lived < s.asked()[0]+ttl-s.answering {
				t.Errorf("the lease lived for %v; its last renewal was asked for after %v", lived, s.asked()[0])
			}
			return nil
		})
		if !errors.Is(err, leasing.ErrLost) {
			t.Error(err)
		}
	})
}

func TestDoTakesNothingOnABadRequest(t *testing.T) {
	t.Parallel()
	s := newShelf()
	for name, err := range map[string]error{
		"a negative time":  leasing.Do(t.Context(), s, leasing.Request{Resource: "r", TTL: ttl}, -1, nil),
		"another's seal":   leasing.Do(t.Context(), s, leasing.Request{Resource: "r", TTL: ttl, SealHash: fence.NewSeal().Hash()}, 0, nil),
		"no resource name": leasing.Do(t.Context(), s, leasing.Request{TTL: ttl}, 0, nil),
	} {
		if lives, _ := s.held(); !errors.Is(err, fence.ErrInvalid) || lives {
			t.Errorf("%s: %v", name, err)
		}
	}
}
