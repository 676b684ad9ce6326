// Package renewal decides when a lease is renewed: the same for every holder and every source.
//
// A lease is renewed after a quarter to a third of its TTL, at random, so that leases acquired together are not renewed
// together. That time counts from before the request that acquired or renewed it, however late the answer comes. A
// renewal that failed is tried again after a twelfth of the TTL, so several tries fit before the deadline.
package renewal

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
)

// Lease is a lease to renew.
type Lease struct {
	TTL      time.Duration
	Deadline func() clock.Instant
	// Extend gives the lease its TTL again.
	Extend func(ctx context.Context) error
	// Passing reports whether an error of Extend may pass. The lease then ends at its deadline unless a later try
	// succeeds.
	Passing func(error) bool
	// Before, if set, is called before each renewal. An error ends the renewals.
	Before func(ctx context.Context) error
	// Random is a random number from 0, and less than n; nil: that of math/rand.
	Random func(n int64) int64
}

// Keep renews the lease until ctx ends, and returns why it is not renewed any more: the cause of ctx, or the error of
// Before or Extend. The lease may be some time old.
func (l Lease) Keep(ctx context.Context) error {
	if l.Random == nil {
		l.Random = rand.Int64N
	}
	timer := time.NewTimer(l.next(l.TTL - l.Deadline().Left()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		if l.Before != nil {
			if err := l.Before(ctx); err != nil {
				return err
			}
		}
		asked := l.Deadline().Now()
		switch err := l.Extend(ctx); {
		case err == nil:
			timer.Reset(l.next(asked.Since()))
		case ended(ctx, err), ctx.Err() != nil && l.Passing(err):
			return context.Cause(ctx)
		case l.Passing(err):
			timer.Reset(l.TTL / 12)
		default:
			return err // also if ctx has ended: the lease is lost
		}
	}
}

// ended reports whether an error says only that ctx has ended.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// next is the time to the next renewal of a lease that was acquired or renewed some time ago.
func (l Lease) next(ago time.Duration) time.Duration {
	soon := l.TTL/4 + time.Duration(l.Random(int64(l.TTL/12)+1))
	return max(0, soon-max(0, ago))
}

// While keeps leases until stop is called. The returned context also ends when one of them is lost: keep returned an
// error before stop was called. stop waits until all have returned, and returns the first loss.
func While(ctx context.Context, keep []func(context.Context) error) (waiting context.Context, stop func() error) {
	if len(keep) == 0 {
		return ctx, func() error { return nil }
	}
	waiting, cancel := context.WithCancelCause(ctx)
	lost := make(chan error, len(keep))
	for _, one := range keep {
		go func() {
			err := one(waiting)
			if ended(waiting, err) {
				err = nil
			}
			if err != nil {
				cancel(err)
			}
			lost <- err
		}()
	}
	return waiting, func() (first error) {
		cancel(nil)
		for range keep {
			if err := <-lost; first == nil {
				first = err
			}
		}
		return first
	}
}
