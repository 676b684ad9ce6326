package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
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
	s.l.life.InBackground(func(context.Context) {
		err := s.renew(ctx, k)
		if k.Ended != nil && !errors.Is(context.Cause(ctx), ErrReleased) {
			k.Ended(err)
		}
	})
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
	defer context.AfterFunc(s.l.life.Calls, func() { cancel(ErrClosed) })()
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

// Lease is a resource held for a time. It is safe for concurrent use.
//
// Its deadline is the last confirmed one: a renewal in progress changes nothing until a quorum has answered. At the
// deadline the context ends, and [Lease.Grant] fails from then on, also in a process that was suspended and whose
// timers have not fired yet.
type Lease struct {
	s    *session
	stop func() // ends this handle's own renewals; nil: it has none

	mu       sync.Mutex
	gone     bool          // this handle was released
	released chan struct{} // closed when Release has its outcome; nil: Release was not called first
	outcome  error
}

var _ leasing.Held = (*Lease)(nil)

// Grant returns the grant to present with each write. It fails with [ErrLost] or [ErrReleased] once the lease is
// over.
func (h *Lease) Grant() (fence.Grant, error) {
	h.mu.Lock()
	gone := h.gone
	h.mu.Unlock()
	if gone {
		return fence.Grant{}, fmt.Errorf("lease of %q: %w", h.s.grant.Resource, ErrReleased)
	}
	return h.s.current()
}

// Deadline is the last confirmed end of the lease.
func (h *Lease) Deadline() clock.Instant { return h.s.lastDeadline() }

// Context ends with the lease; its cause is [ErrLost] or [ErrReleased]. It carries the values of the context that the
// lease was acquired with, but not its cancellation. Its methods check the clock, so in a process that was suspended
// it has ended even if its timers have not fired.
func (h *Lease) Context() context.Context { return leaseContext{h.s.context(), h.s} }

// Done is closed when the lease is over. It checks the clock as [Lease.Context] does.
func (h *Lease) Done() <-chan struct{} { return h.Context().Done() }

// Ref identifies the acquisition for [Locker.Extend] and [Locker.Release] in any process.
func (h *Lease) Ref() leasing.Ref { return h.s.ref() }

// Extend gives the lease a new TTL, counted from now. It succeeds only if a quorum answers before the OLD deadline,
// and retries until then while too few nodes answer. If ctx ends sooner, the lease stays valid until that deadline. A
// TTL shorter than the remaining time ends the lease sooner, but not its locks; only [Lease.Release] removes those.
func (h *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if _, err := h.Grant(); err != nil {
		return err
	}
	return h.s.extendUnlessReleased(ctx, ttl)
}

// Release ends the lease's context, then gives the lease back. It waits for the fence and for a quorum, within its
// own time limits, even if ctx has ended. Further calls return the same result. See [Locker.Release] for the errors.
// While the lease has other handles ([WithOwner]), only this one is released.
func (h *Lease) Release(ctx context.Context) error {
	h.mu.Lock()
	if h.gone {
		released := h.released
		h.mu.Unlock()
		if released != nil {
			<-released
		}
		return h.outcome
	}
	last := h.leave()
	h.released = make(chan struct{})
	h.mu.Unlock()
	defer close(h.released)
	if last {
		h.outcome = h.s.release(ctx) // Grant fails at once meanwhile: it does not wait for the nodes
	}
	return h.outcome
}

// ReleaseAsync is [Lease.Release] without waiting: the lease is over when it returns, and the fence and the nodes are
// notified in the background. Nodes that can't be reached keep the locks until their TTL is over.
func (h *Lease) ReleaseAsync() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return
	}
	if h.leave() {
		h.s.releaseAsync()
	}
}

// leave ends the handle and reports whether it was the lease's last. The caller has locked mu.
func (h *Lease) leave() bool {
	h.gone = true
	if h.stop != nil {
		h.stop()
	}
	return h.s.drop()
}
