package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// A caller that waits behind others of its process gets an error with the holder, as they do.
func TestTheEndOfAWaitInLineNamesTheHolder(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	held := acquire(t, started(t, cfg), "r", lock.WithTTL(time.Minute), lock.WithHolder("worker-a"))
	l := locker(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := l.Acquire(ctx, "r")
		first <- err
	}()
	eventually(t, 10*time.Second, "the first is in the queue", func() bool { return queued(t, cfg, l.Home("r"), "r") == 1 })
	behind, giveUp := context.WithTimeout(t.Context(), 2*time.Second)
	defer giveUp()
	_, err := l.Acquire(behind, "r")
	var why *leasing.HeldError
	if !errors.As(err, &why) || why.Holder != "worker-a" || why.RetryAfter <= 0 || why.RetryAfter > time.Minute {
		t.Errorf("%v: %+v", err, why)
	}
	cancel()
	if err := <-first; !errors.Is(err, lock.ErrHeld) {
		t.Error(err)
	}
	release(t, held)
}
