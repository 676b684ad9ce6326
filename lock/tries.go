package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// WithTries bounds how long [Locker.Acquire] waits, in the terms of libraries that poll: as long as that many tries
// with that delay between them would take, and then for the answer to one last try. The error is then that of
// [Locker.TryAcquire]. There is no polling meanwhile: a waiter stands in its queue, and a release wakes it. One try
// is TryAcquire. [Locker.AcquireAll] refuses it.
func WithTries(tries int, delay time.Duration) AcquireOption {
	return func(o *acquireOptions) {
		o.tries, o.delay = tries, delay
		if tries == 0 {
			o.tries = -1 // refused below: no try is no acquisition
		}
	}
}

// maxTries keeps the product in a Duration.
const maxTries = 1 << 20

func (o *acquireOptions) validateTries() error {
	switch {
	case o.tries < 0 || o.tries > maxTries:
		return &fence.InvalidError{Field: "tries", Reason: fmt.Sprintf("must be 1 to %d", maxTries)}
	case o.delay < 0 || o.delay > time.Hour:
		return &fence.InvalidError{Field: "delay between tries", Reason: fmt.Sprintf("is %v; allowed is 0 to 1h", o.delay)}
	}
	return nil
}

// patience is how long the acquisition may still wait for others; not bounded: until its context ends.
func (o *acquireOptions) patience() (d time.Duration, bounded bool) {
	switch {
	case o.atOnce:
		return 0, true
	case o.tries > 0:
		return max(0, time.Duration(o.tries-1)*o.delay-o.waited), true
	}
	return 0, false
}

// errGaveUp ends the wait of an acquisition that has a number of tries.
var errGaveUp = errors.New("no tries are left")

func (l *Locker) acquireWithin(ctx context.Context, resource string, o acquireOptions) (*attempt, error) {
	begun := time.Now()
	if patience, _ := o.patience(); patience > 0 {
		within, cancel := context.WithTimeoutCause(ctx, patience, errGaveUp)
		a, err := l.patiently(within, resource, o)
		gaveUp := errors.Is(context.Cause(within), errGaveUp)
		cancel()
		if err == nil || !gaveUp {
			return l.measured(a, err, begun)
		}
	}
	return l.tryAcquire(ctx, resource, o)
}
