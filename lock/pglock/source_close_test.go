package pglock_test

import (
	"context"
	"errors"
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

// closing is a process whose Close gives back its leases, however busy the machine is.
func (w world) closing(t *testing.T, onAccepted func(context.Context, func() error) error) *pglock.Source {
	t.Helper()
	return source(t, pglock.Config{Pool: pool(t, w.locker), MaxTTL: hour, OnAccepted: onAccepted}.CloseInTime())
}

func TestCloseGivesBackWhatACallHasThatWaitsForMore(t *testing.T) {
	t.Parallel()
	w := setup(t)
	s := w.closing(t, nil)
	w.exec(t, `SELECT fence.take_lease('b', 'another', 3600000000, sha256('seal'), '', false)`)
	outcome := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "a", TTL: hour}, leasing.Request{Resource: "b", TTL: hour})
		outcome <- err
	}()
	until(t, "it has a, and waits for b", func() bool {
		return w.isLocked(t, "a") && ask[int](t, w, `SELECT count(*) FROM fence.lease_waiters WHERE resource = 'b'`) == 1
	})
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
		_, err := s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: hour})
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
	for name, repeatable := range map[string]bool{"repeatable": true, "once": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, taken := setup(t), make(waits)
			s := w.closing(t, taken.accepted)
			ctx, cancel := context.WithCancel(t.Context())
			outcome := make(chan error, 1)
			go func() {
				_, err := s.Acquire(ctx, leasing.AtOnce, leasing.Request{Resource: "r", TTL: hour, SealHash: fence.NewSeal().Hash(), Repeatable: repeatable})
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
			if locked := w.isLocked(t, "r"); locked != repeatable {
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
	w.exec(t, `SELECT fence.take_lease('b', 'another', 3600000000, sha256('seal'), '', false)`)
	request := func(resource string) leasing.Request {
		return leasing.Request{Resource: resource, TTL: hour, SealHash: fence.NewSeal().Hash(), Repeatable: true}
	}
	_, err := s.Acquire(t.Context(), leasing.AtOnce, request("a"), request("b"))
	if !errors.Is(err, leasing.ErrHeld) {
		t.Error(err)
	}
	if w.isLocked(t, "a") {
		t.Error("a stays locked")
	}
}
