package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/renewal"
)

// KeepAlive renews a lease in the background. It needs a cap, For, Renewals, or both, so that a stuck worker cannot
// keep a resource forever.
type KeepAlive struct {
	// For is how long after the acquisition the lease is renewed at most.
	For time.Duration
	// Renewals is the maximum number of renewals.
	Renewals int
	// Progress, if set, is called before each renewal. An error means that the worker is stuck: the renewals end, and
	// the lease expires.
	Progress func(context.Context) error
	// Ended, if set, is called with the reason when renewals end, unless the lease was released. Like Progress it
	// must not close the Locker, which waits for both.
	Ended func(error)
}

// ErrCapped: the lease is not renewed any more because the cap of its [KeepAlive] is reached.
var ErrCapped = leasing.ErrCapped

// WithKeepAlive renews the lease after a quarter to a third of its TTL, at random, so that leases acquired together
// are not renewed together. Renewals end when the lease is released, lost or capped, or the Locker is closed. A
// failed renewal is retried as long as the lease has time. If an [Owner] already holds the lease, it is renewed until
// this handle is released, to the TTL that it was acquired with.
func WithKeepAlive(k KeepAlive) AcquireOption {
	return func(o *acquireOptions) { o.keepAlive = &k }
}

func (k *KeepAlive) validate() error {
	if k != nil && k.For <= 0 && k.Renewals <= 0 {
		return &fence.InvalidError{Field: "keep-alive", Reason: "has no cap: set For or Renewals"}
	}
	return nil
}

// keepAlive starts renewals until ctx ends, which ends with the lease. It does nothing if the Locker is closed.
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

// renew renews the lease and returns why that ended.
func (s *session) renew(ctx context.Context, k KeepAlive) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.l.ctx, func() { cancel(ErrClosed) })()
	end, done := s.l.clock.Now().Add(k.For), 0
	return renewal.Lease{
		TTL: s.ttl, Deadline: s.lastDeadline, Passing: Retryable, Random: s.l.dice,
		Before: func(ctx context.Context) error {
			if k.Renewals > 0 && done >= k.Renewals || k.For > 0 && end.Passed() {
				return ErrCapped
			}
			if k.Progress != nil {
				if err := k.Progress(ctx); err != nil {
					return fmt.Errorf("keep-alive stopped, because Progress failed: %w", err)
				}
			}
			return nil
		},
		Extend: func(ctx context.Context) error {
			err := s.extend(ctx, s.ttl)
			if err == nil {
				done++
			}
			return err
		},
	}.Keep(ctx)
}
