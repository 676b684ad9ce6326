package lock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

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

var _ leasing.HeldLease = (*Lease)(nil)

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
