package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Lease is a resource held for a time. It is safe for concurrent use.
//
// Its deadline is the last confirmed one: a renewal that is on its way changes
// nothing until a quorum has answered. At the deadline the context ends, and
// [Lease.Grant] fails from then on, also in a process that was suspended and
// whose timers have not run yet.
type Lease struct {
	l     *Locker
	grant fence.Grant
	owner string

	ctx       context.Context
	cancel    context.CancelCauseFunc
	extending chan struct{} // holds one value while an extension or the release is on its way

	mu       sync.Mutex
	deadline instant
	timer    *time.Timer
	over     error // ErrLost or ErrReleased
	released error // what the first Release returned
}

func newLease(ctx context.Context, l *Locker, grant fence.Grant, owner string, deadline instant) *Lease {
	s := &Lease{l: l, grant: grant, owner: owner, deadline: deadline, extending: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(deadline.left(), s.expire)
	return s
}

// expire ends the lease if its deadline has passed.
func (s *Lease) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkLocked()
}

// checkLocked ends the lease at its deadline and returns why it is over, or nil.
func (s *Lease) checkLocked() error {
	if s.over == nil {
		if !s.deadline.passed() {
			return nil
		}
		s.endLocked(ErrLost)
	}
	return s.over
}

func (s *Lease) endLocked(why error) {
	if s.over != nil {
		return
	}
	s.over = why
	s.timer.Stop()
	s.cancel(why)
}

// Grant is what to present with each write. It fails with [ErrLost] or
// [ErrReleased] once the lease is over.
func (s *Lease) Grant() (fence.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkLocked(); err != nil {
		return fence.Grant{}, fmt.Errorf("lease of %q: %w", s.grant.Resource, err)
	}
	return s.grant, nil
}

// Deadline is the last confirmed end of the lease, on the monotonic clock.
func (s *Lease) Deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline.mono
}

// Context ends when the lease does, with [ErrLost] or [ErrReleased] as its
// cause. It carries the values of the context that the lease was acquired with,
// but not its end.
func (s *Lease) Context() context.Context { return s.ctx }

// Done is closed when the lease is over.
func (s *Lease) Done() <-chan struct{} { return s.ctx.Done() }

// Ref names the acquisition for [Locker.Extend] and [Locker.Release] in any process.
func (s *Lease) Ref() Ref {
	return Ref{Resource: s.grant.Resource, Owner: s.owner, Token: s.grant.Token}
}

// Extend gives the lease a new TTL, counted from now. It succeeds only if a
// quorum answers within the OLD deadline. Where it fails with [ErrNoQuorum] the
// lease lives on until that deadline, or until now + ttl where that is sooner.
func (s *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	select {
	case s.extending <- struct{}{}:
		defer func() { <-s.extending }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, err := s.Grant(); err != nil {
		return err
	}
	hoped := now().add(s.l.validity(ttl))
	deadline, err := s.l.extend(ctx, s.Ref(), ttl)
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
	default:
		// Some nodes may have taken the new TTL, which may be the shorter one.
		s.moveLocked(s.deadline.earlier(hoped))
	}
	return err
}

func (s *Lease) moveLocked(deadline instant) {
	s.deadline = deadline
	s.timer.Reset(deadline.left())
}

// Release gives the lease back and ends its context first. It waits for a
// quorum, on a bound of its own, whatever becomes of ctx; further calls return
// the same result. See [Locker.Release] for the errors.
func (s *Lease) Release(ctx context.Context) error {
	s.extending <- struct{}{} // an extension that overtook the release could shorten nothing, but would confuse its caller
	defer func() { <-s.extending }()
	s.mu.Lock()
	if errors.Is(s.over, ErrReleased) {
		defer s.mu.Unlock()
		return s.released
	}
	lost := s.checkLocked()
	if lost == nil {
		s.endLocked(ErrReleased)
	}
	s.mu.Unlock()

	err := s.l.Release(ctx, s.Ref()) // also when lost: a lock may be left on some node
	if lost != nil {
		return fmt.Errorf("release %q: %w", s.grant.Resource, lost)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = err
	return err
}
