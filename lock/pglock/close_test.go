package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/pglock"
)

// hour is longer than a test: what stays locked is not free because it expired.
const hour = time.Hour

// isLocked reports whether somebody has the lease of a resource.
func (w world) isLocked(t *testing.T, resource string) bool {
	t.Helper()
	ins, err := leasing.One(w.Inspect(t.Context(), resource))
	if err != nil {
		t.Fatal(err)
	}
	return ins.Locked
}

// two waits for the leases of a and b, has that of a, and returns its outcome.
func (w world) two(ctx context.Context, t *testing.T, s *pglock.Source) <-chan error {
	t.Helper()
	w.exec(t, `SELECT fence.take_lease('b', 'another', 3600000000, sha256('seal'), '', 0, false)`)
	outcome := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, leasing.UntilDone, []leasing.Request{{Resource: "a", TTL: hour}, {Resource: "b", TTL: hour}}...)
		outcome <- err
	}()
	until(t, "it has a, and waits for b", func() bool {
		return w.isLocked(t, "a") && ask[int](t, w, `SELECT count(*) FROM fence.lease_waiters WHERE resource = 'b'`) == 1
	})
	return outcome
}

// closing is a process whose Close gives back what it has, however busy the machine is.
func (w world) closing(t *testing.T, onAccepted func(context.Context, func() error) error) *pglock.Source {
	t.Helper()
	return source(t, pglock.Config{Pool: pool(t, w.locker), MaxTTL: hour, OnAccepted: onAccepted}.CloseInTime())
}

func TestCloseGivesBackWhatACallHasThatWaitsForMore(t *testing.T) {
	t.Parallel()
	w := setup(t)
	s := w.closing(t, nil)
	outcome := w.two(t.Context(), t, s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-outcome; !errors.Is(err, leasing.ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
	if w.isLocked(t, "a") {
		t.Error("nobody has the lease of a, and it stays locked")
	}
}

// waits keeps a lease that PostgreSQL gave from its caller, until that one gives up.
type waits chan struct{}

func (w waits) accepted(ctx context.Context, take func() error) error {
	if err := take(); err != nil {
		return err
	}
	close(w)
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestCloseGivesBackALeaseThatItsCallerDoesNotHaveYet(t *testing.T) {
	t.Parallel()
	w, taken := setup(t), make(waits)
	s := w.closing(t, taken.accepted)
	outcome := make(chan error, 1)
	go func() {
		_, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: hour}))
		outcome <- err
	}()
	<-taken
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-outcome; !errors.Is(err, leasing.ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
	if w.isLocked(t, "r") {
		t.Error("nobody has the lease, and it stays locked")
	}
}

// A repeat of the request, if there may be one, may have returned the lease once its fence is raised.
func TestALeaseThatARepeatMayHaveReturnedIsNotGivenBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ several, repeatable bool }{{false, true}, {true, true}, {false, false}, {true, false}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			w, taken := setup(t), make(waits)
			s := w.closing(t, taken.accepted)
			ctx, cancel := context.WithCancel(t.Context())
			outcome := make(chan error, 1)
			request := leasing.Request{Resource: "r", TTL: hour, SealHash: fence.NewSeal().Hash(), Repeatable: c.repeatable}
			go func() {
				var err error
				if c.several {
					_, err = s.Acquire(ctx, leasing.AtOnce, []leasing.Request{request}...)
				} else {
					_, err = leasing.One(s.Acquire(ctx, leasing.AtOnce, request))
				}
				outcome <- err
			}()
			<-taken
			cancel()
			if err := <-outcome; !errors.Is(err, context.Canceled) {
				t.Errorf("%v; want that its caller has gone", err)
			}
			if err := s.Close(); err != nil { // waits for what is given back
				t.Error(err)
			}
			if locked := w.isLocked(t, "r"); locked != c.repeatable {
				t.Errorf("locked: %t", locked)
			}
		})
	}
}

// Of several, no repeat finds all if one was not acquired.
func TestSeveralLeasesThatNoRepeatCanHaveAreGivenBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	s := source(t, pglock.Config{Pool: pool(t, w.locker), MaxTTL: hour})
	w.exec(t, `SELECT fence.take_lease('b', 'another', 3600000000, sha256('seal'), '', 0, false)`)
	_, err := s.Acquire(t.Context(), leasing.AtOnce, []leasing.Request{
		{Resource: "a", TTL: hour, SealHash: fence.NewSeal().Hash(), Repeatable: true}, {Resource: "b", TTL: hour, SealHash: fence.NewSeal().Hash(), Repeatable: true},
	}...)
	if !errors.Is(err, leasing.ErrHeld) {
		t.Error(err)
	}
	if w.isLocked(t, "a") {
		t.Error("a stays locked")
	}
}

func TestLeasesOfACallThatFailsAreGivenBackAfterARestart(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.mayBeAway(t)
	s := source(t, pglock.Config{Pool: a.Pool, MaxTTL: hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outcome := w.two(ctx, t, s)
	a.is.Store(true)
	cancel()
	if err := <-outcome; !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want that its caller has gone", err)
	}
	if !w.isLocked(t, "a") {
		t.Fatal("a was freed without PostgreSQL")
	}
	a.is.Store(false)
	until(t, "a is free", func() bool { return !w.isLocked(t, "a") })
}
