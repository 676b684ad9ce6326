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
		h.outcome = h.s.release(ctx) // Grant fails at once: it does not wait for the nodes
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

// session is the state shared by all handles of one acquisition.
type session struct {
	l     *Locker
	grant fence.Grant
	owner string
	ttl   time.Duration // of the acquisition
	begun time.Time

	parent    context.Context // values only
	extending chan struct{}   // holds one value during an extension or the release

	mu       sync.Mutex
	ctx      context.Context // created on demand
	cancel   context.CancelCauseFunc
	deadline clock.Instant
	timer    *time.Timer
	over     error // ErrLost or ErrReleased
	handles  int
	ended    func() // called once when the lease is over, if set before
}

func newSession(ctx context.Context, l *Locker, grant fence.Grant, owner string, ttl time.Duration, deadline clock.Instant) *session {
	s := &session{
		l: l, parent: ctx, grant: grant, owner: owner, ttl: ttl, deadline: deadline,
		extending: make(chan struct{}, 1), handles: 1, begun: time.Now(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(deadline.Left(), s.expire)
	l.leases.Add(1)
	l.sessions.Store(s, grant.Resource)
	return s
}

func (s *session) ref() leasing.Ref {
	return leasing.Ref{Resource: s.grant.Resource, Owner: s.owner, Token: s.grant.Token}
}

// context returns the context that ends with the lease, always the same one.
func (s *session) context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(s.parent))
		if s.over != nil {
			s.cancel(s.over)
		}
	}
	return s.ctx
}

// leaseContext is a session's context that also checks the clock, in case its timer is late.
type leaseContext struct {
	context.Context
	s *session
}

func (c leaseContext) Err() error {
	c.s.expire()
	return c.Context.Err()
}

func (c leaseContext) Done() <-chan struct{} {
	c.s.expire()
	return c.Context.Done()
}

// expire ends the lease if its deadline has passed.
func (s *session) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.checkLocked()
}

// checkLocked ends the lease at its deadline and returns why it is over, or nil.
func (s *session) checkLocked() error {
	if s.over == nil {
		if !s.deadline.Passed() {
			return nil
		}
		s.endLocked(ErrLost)
	}
	return s.over
}

func (s *session) endLocked(why error) {
	if s.over != nil {
		return
	}
	s.over = why
	s.l.leases.Add(-1)
	s.l.sessions.Delete(s)
	s.l.cfg.Metrics.Ended(time.Since(s.begun), why != ErrReleased) //nolint:errorlint // one of two sentinels, never wrapped
	s.timer.Stop()
	if s.cancel != nil {
		s.cancel(why)
	}
	if s.ended != nil {
		s.ended()
	}
}

// onEnd calls f when the lease is over, or at once if it is over already.
func (s *session) onEnd(f func()) {
	s.mu.Lock()
	over := s.over != nil
	if !over {
		s.ended = f
	}
	s.mu.Unlock()
	if over {
		f()
	}
}

func (s *session) current() (fence.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkLocked(); err != nil {
		return fence.Grant{}, fmt.Errorf("lease of %q: %w", s.grant.Resource, err)
	}
	return s.grant, nil
}

// until is the lease's deadline. It fails if that has passed.
func (s *session) until() (clock.Instant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkLocked(); err != nil {
		return clock.Instant{}, fmt.Errorf("lease of %q: %w", s.grant.Resource, err)
	}
	return s.deadline, nil
}

// retain adds one handle.
func (s *session) retain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkLocked(); err != nil {
		return fmt.Errorf("lease of %q: %w", s.grant.Resource, err)
	}
	if s.handles == 0 {
		return fmt.Errorf("lease of %q: %w", s.grant.Resource, ErrReleased)
	}
	s.handles++
	return nil
}

// drop removes one handle and reports whether it was the last.
func (s *session) drop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles--
	return s.handles == 0
}

// extendUnlessReleased is extend for a context that does not end with the lease.
func (s *session) extendUnlessReleased(ctx context.Context, ttl time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lease := s.context()
	defer context.AfterFunc(lease, func() { cancel(context.Cause(lease)) })()
	return s.extend(ctx, ttl)
}

// extend gives the lease a new TTL. A release waits for it, so ctx should end with the lease.
func (s *session) extend(ctx context.Context, ttl time.Duration) error {
	select {
	case s.extending <- struct{}{}:
		defer func() { <-s.extending }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	until, err := s.until()
	if err != nil {
		return err
	}
	deadline, err := s.l.extend(ctx, s.ref(), ttl, until)
	if errors.Is(err, fence.ErrInvalid) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if over := s.checkLocked(); over != nil {
		return fmt.Errorf("extend %q: %w", s.grant.Resource, over)
	}
	switch {
	case err == nil:
		s.moveLocked(deadline)
	case errors.Is(err, ErrLost):
		s.endLocked(ErrLost)
	}
	return err
}

// lastDeadline is the last confirmed end of the lease. It may have passed.
func (s *session) lastDeadline() clock.Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline
}

func (s *session) moveLocked(deadline clock.Instant) {
	s.deadline = deadline
	s.timer.Reset(deadline.Left())
}

// end ends the lease and returns how it had ended before, if it had.
func (s *session) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.checkLocked()
	s.endLocked(ErrReleased)
	return lost
}

func (s *session) release(ctx context.Context) error {
	lost := s.end()
	s.extending <- struct{}{} // waits for an extension in progress
	defer func() { <-s.extending }()
	err := s.l.releaseGrant(ctx, s.ref(), s.grant.Seal.Hash()) // also if lost: a node may still have the lock
	s.l.lines.Free(s.grant.Resource)
	if lost != nil {
		return fmt.Errorf("release %q: %w", s.grant.Resource, lost)
	}
	return err
}

func (s *session) releaseAsync() {
	_ = s.end()
	free := func() {
		s.l.giveBack(s.grant.Resource, s.owner, s.l.group.LongestTTL(), s.l.all())
		s.l.lines.Free(s.grant.Resource) // a later acquire follows the release on each connection
	}
	if s.l.cfg.Armer == nil || !s.l.life.InBackground(func(context.Context) {
		s.l.endGrant(s.parent, s.ref(), s.grant.Seal.Hash())
		free()
	}) {
		free()
	}
}
