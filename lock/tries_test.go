package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

func TestAnAcquisitionWithTriesGivesUp(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	held := acquire(t, l, "r", lock.WithTTL(time.Minute), lock.WithHolder("worker-a"))
	for _, tries := range []int{1, 3} {
		var begun time.Time
		err := patiently(t.Context(), func() error {
			begun = time.Now()
			_, err := l.Acquire(t.Context(), "r", lock.WithTries(tries, 100*time.Millisecond))
			return err
		})
		if !errors.Is(err, lock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d tries: %v", tries, err)
		}
		if took := time.Since(begun); took < time.Duration(tries-1)*100*time.Millisecond {
			t.Errorf("%d tries took %v", tries, took)
		}
	}
	release(t, held)
	var last *lock.Lease
	must(t, patiently(t.Context(), func() (err error) {
		last, err = l.Acquire(t.Context(), "r", lock.WithTries(2, time.Nanosecond)) // the last try counts, however short the wait
		return err
	}))
	release(t, last)
}

func TestAReleaseWakesAnAcquisitionWithTries(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	held := acquire(t, l, "r", lock.WithTTL(time.Minute))
	got := make(chan error, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "r", lock.WithTries(100, time.Minute)) // polling would take a minute
		if err == nil {
			err = lease.Release(t.Context())
		}
		got <- err
	}()
	eventually(t, 20*time.Second, "it waits", func() bool { return l.Waiting("r") > 0 })
	release(t, held)
	select {
	case err := <-got:
		check(t, err)
	case <-time.After(40 * time.Second):
		t.Error("it was not woken")
	}
}

func TestAnAcquisitionWithTriesEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	held := acquire(t, l, "r", lock.WithTTL(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Acquire(ctx, "r", lock.WithTries(100, time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	release(t, held)
}

func TestTriesAreChecked(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 1))
	for _, opt := range []lock.AcquireOption{lock.WithTries(0, 0), lock.WithTries(-1, 0), lock.WithTries(1<<21, 0), lock.WithTries(2, -1), lock.WithTries(2, 2*time.Hour)} {
		if _, err := l.Acquire(t.Context(), "r", opt); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
}
