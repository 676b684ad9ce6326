package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// KeepAlive renews a lease in the background. It needs a cap, so that a stuck
// worker cannot keep a resource for ever: For, Renewals, or both.
type KeepAlive struct {
	// For is how long after the acquisition the lease is renewed at most.
	For time.Duration
	// Renewals is how often it is renewed at most.
	Renewals int
	// Progress, if set, is asked before each renewal. An error ends the
	// renewals: the worker is stuck, and the lease runs out.
	Progress func(context.Context) error
	// Ended, if set, hears why renewals ended, unless the lease was released. Like
	// Progress it must not close the Locker, which waits for both.
	Ended func(error)
}

// ErrCapped: the lease is not renewed any more, because the cap of its
// [KeepAlive] is reached.
var ErrCapped = leasing.ErrCapped

// WithKeepAlive renews the lease after a quarter to a third of its TTL, at random,
// so that leases which were acquired together are not renewed together; and that until
// it is released, lost, capped, or the Locker is closed. A renewal is tried again as
// long as the lease has time. Where an [Owner] holds the lease already, it is renewed until
// this handle of it is released, to the TTL that it was acquired with.
func WithKeepAlive(k KeepAlive) AcquireOption {
	return func(o *acquireOptions) { o.keepAlive = &k }
}

func (k *KeepAlive) validate() error {
	if k != nil && k.For <= 0 && k.Renewals <= 0 {
		return &fence.InvalidError{Field: "keep-alive", Reason: "has no cap: set For or Renewals"}
	}
	return nil
}

// keepAlive starts renewing until ctx ends, which ends with the lease, unless the Locker is closed.
func (s *session) keepAlive(ctx context.Context, k KeepAlive) {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.background.Go(func() {
			err := s.renew(ctx, k)
			if k.Ended != nil && !errors.Is(context.Cause(ctx), ErrReleased) {
				k.Ended(err)
			}
		})
	}
}

// keepAlive renews the lease until this handle of it is released.
func (h *Lease) keepAlive(k KeepAlive) {
	ctx, cancel := context.WithCancelCause(h.s.context())
	h.stop = func() { cancel(ErrReleased) }
	h.s.keepAlive(ctx, k)
}

// first is when to renew a lease that may have lived for a while.
func (s *session) first() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.soon()-max(0, s.ttl-s.deadline.left()))
}

// soon is when to renew next.
func (s *session) soon() time.Duration { return s.ttl/4 + rand.N(s.ttl/12+1) }

// renew returns why renewing ended.
func (s *session) renew(ctx context.Context, k KeepAlive) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.l.ctx, func() { cancel(ErrClosed) })()
	begun := time.Now()
	next := s.first()
	for done := 0; ; {
		if err := pause(ctx, next); err != nil {
			return err
		}
		switch {
		case k.Renewals > 0 && done >= k.Renewals, k.For > 0 && time.Since(begun) >= k.For:
			return ErrCapped
		}
		if k.Progress != nil {
			if err := k.Progress(ctx); err != nil {
				return fmt.Errorf("no progress: %w", err)
			}
		}
		switch err := s.extend(ctx, s.ttl); {
		case err == nil:
			done++
			next = s.soon()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case Retryable(err):
			next = s.ttl / 12 // several more tries before the deadline
		default:
			return err
		}
	}
}
