package leases

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/leasing/leasingtest"
)

func TestASourceFollowsTheRules(t *testing.T) {
	t.Parallel()
	leasingtest.RunInBubbles(t, func(t testing.TB) leasingtest.Open {
		s := newService()
		return func(armer leasing.Armer) leasing.Source { return s.open(t, armer) }
	})
}

// caller is a call that waits.
type caller struct {
	cancel context.CancelCauseFunc
	lease  leasing.Lease
	err    error
	ended  time.Duration // after the service began; 0: it waits
}

// calls has a caller wait for a resource, behind those that called before.
func calls(t *testing.T, s *service, source *Source, resource string) *caller {
	t.Helper()
	c := &caller{}
	ctx, cancel := context.WithCancelCause(t.Context())
	c.cancel = cancel
	go func() {
		c.lease, c.err = leasing.One(source.Acquire(ctx, leasing.UntilDone, request(resource)))
		c.ended = time.Since(s.begun)
	}()
	synctest.Wait()
	return c
}

var errStop = errors.New("asked to stop")

// Whoever leaves a line, for whatever reason, the next one is served.
func TestALineGoesOnWhoeverLeavesIt(t *testing.T) {
	t.Parallel()
	for leaves, name := range []string{"the first", "one in the middle", "the last"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				holder, source := s.process(t, nil), s.process(t, nil)
				held := take(t, holder, "r")
				line := []*caller{calls(t, s, source, "r"), calls(t, s, source, "r"), calls(t, s, source, "r")}
				line[leaves].cancel(errStop)
				synctest.Wait()
				if err := line[leaves].err; !errors.Is(err, errStop) || !errors.Is(err, leasing.ErrHeld) {
					t.Errorf("who left: %v; want its context's cause joined with ErrHeld", err)
				}
				line = slices.Delete(line, leaves, leaves+1)
				release(t, holder, held)
				for i, c := range line {
					synctest.Wait()
					if c.err != nil || c.lease.Grant.Token == 0 {
						t.Fatalf("caller %d of those that stay: %v, %v, at once after the resource was free", i, c.lease.Grant, c.err)
					}
					if i+1 < len(line) && line[i+1].ended > 0 {
						t.Errorf("two holders")
					}
					release(t, source, c.lease)
				}
				if time.Since(s.begun) > 0 {
					t.Errorf("it took %v", time.Since(s.begun))
				}
			})
		})
	}
}

// Only the first of a line queues in the service.
func TestAProcessHasOnePlaceInAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		holder, source, other := s.process(t, nil), s.process(t, nil), s.process(t, nil)
		held := take(t, holder, "r")
		first, behind, elsewhere := calls(t, s, source, "r"), calls(t, s, source, "r"), calls(t, s, other, "r")
		if ins, err := leasing.One(holder.Inspect(t.Context(), "r")); err != nil || ins.Waiters != 2 {
			t.Errorf("%d wait in the service, %v; want one for each process", ins.Waiters, err)
		}
		release(t, holder, held)
		for i, c := range []*caller{first, elsewhere, behind} { // the process queues again behind the other one
			synctest.Wait()
			if c.err != nil || c.ended != 0 || c.lease.Grant.Token != fence.Token(i+2) {
				t.Errorf("%d: %v, %v", i, c.lease.Grant, c.err)
			}
			release(t, []*Source{source, other, source}[i], c.lease)
		}
	})
}

// A wait ends when its context does, not before, and says who holds the resource, as far as it knows.
func TestAWaitEndsWithItsContextAndSaysWhy(t *testing.T) {
	t.Parallel()
	const bound = 10 * time.Minute
	for name, one := range map[string]struct {
		ahead int // of the same process
		away  bool
		want  []error
	}{
		"held":                {want: []error{leasing.ErrHeld, context.DeadlineExceeded}},
		"behind others":       {ahead: 2, want: []error{leasing.ErrHeld, context.DeadlineExceeded}},
		"the service is away": {away: true, want: []error{leasing.ErrUnavailable, context.DeadlineExceeded}},
		"away, behind others": {away: true, ahead: 1, want: []error{leasing.ErrUnavailable, context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				holder, source := s.process(t, nil), s.process(t, nil)
				if _, err := leasing.One(holder.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: time.Hour, Holder: "worker-a"})); err != nil {
					t.Fatal(err)
				}
				if one.away {
					s.leave(time.Hour)
				}
				for range one.ahead {
					calls(t, s, source, "r")
				}
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				_, err := leasing.One(source.Acquire(ctx, leasing.UntilDone, request("r")))
				if waited := time.Since(s.begun); waited != bound {
					t.Errorf("it waited for %v; its context ended after %v", waited, bound)
				}
				for _, want := range one.want {
					if !errors.Is(err, want) {
						t.Errorf("%v; want %v", err, want)
					}
				}
				if held, ok := errors.AsType[*leasing.HeldError](err); ok && held.Resource != "r" {
					t.Errorf("%+v", held)
				}
			})
		})
	}
}

func TestCloseEndsEveryWaitAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		holder, source := s.process(t, nil), s.process(t, nil)
		take(t, holder, "r")
		kept := take(t, source, "kept")
		line := []*caller{calls(t, s, source, "r"), calls(t, s, source, "r")}
		if err := source.Close(); err != nil || time.Since(s.begun) > 0 {
			t.Errorf("%v after %v", err, time.Since(s.begun))
		}
		synctest.Wait()
		for i, c := range line {
			if !errors.Is(c.err, leasing.ErrClosed) || errors.Is(c.err, leasing.ErrHeld) {
				t.Errorf("caller %d: %v; want ErrClosed", i, c.err)
			}
		}
		if _, err := source.Extend(t.Context(), kept.Ref(), ttl); !errors.Is(err, leasing.ErrClosed) || !s.lives("kept") {
			t.Errorf("%v; its lease lives: %t", err, s.lives("kept"))
		}
		if ins, err := leasing.One(holder.Inspect(t.Context(), "r")); err != nil || ins.Waiters > 0 {
			t.Errorf("%d still wait in the service, %v", ins.Waiters, err)
		}
	})
}

// slow arms after a time.
type slow struct {
	anyFence

	takes time.Duration
}

func (s slow) Arm(ctx context.Context, _ ...fence.Arming) error {
	Pause(ctx, s.takes)
	return nil
}

// The deadline is counted from before the service was asked.
func TestALeaseWhoseDeadlinePassedWhileItWasArmedIsNotGiven(t *testing.T) {
	t.Parallel()
	lives := good(ttl)
	for arming, given := range map[time.Duration]bool{lives - 1: true, lives: false, ttl: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			source := s.process(t, slow{takes: arming})
			lease, err := leasing.One(source.Acquire(t.Context(), leasing.AtOnce, request("r")))
			if given && (err != nil || lease.Deadline.Left() != 1) || !given && !errors.Is(err, leasing.ErrLost) {
				t.Errorf("armed for %v: %v, %v", arming, lease.Grant, err)
			}
			synctest.Wait()
			if s.lives("r") != given {
				t.Errorf("armed for %v: held: %t", arming, s.lives("r"))
			}
		})
	}
}

// rising records more than any token that it is given, so often.
type rising struct {
	anyFence

	left int
}

func (r *rising) Arm(_ context.Context, all ...fence.Arming) error {
	a := all[0]
	if r.left--; r.left < 0 {
		return nil
	}
	return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: a.Token + 10}
}

func TestALeaseBelowItsFenceIsTakenAgainABoundedNumberOfTimes(t *testing.T) {
	t.Parallel()
	for refusals, given := range map[int]bool{0: true, 2: true, 3: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			lease, err := leasing.One(s.process(t, &rising{left: refusals}).Acquire(t.Context(), leasing.AtOnce, request("r")))
			if given && (err != nil || lease.Grant.Token != fence.Token(1+refusals*11)) || !given && (!errors.Is(err, leasing.ErrHeld) || !errors.Is(err, fence.ErrNotRaised)) {
				t.Errorf("%d refusals: %v, %v", refusals, lease.Grant, err)
			}
			if s.lives("r") != given {
				t.Errorf("%d refusals: held: %t", refusals, s.lives("r"))
			}
		})
	}
}
