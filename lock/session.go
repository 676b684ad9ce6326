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
)

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
	l.held.Add(1)
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
	s.l.held.Add(-1)
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
