package leasing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/internal/renewal"
)

// DefaultRenewal is how long [Do] renews a lease by default.
const DefaultRenewal = time.Hour

// ErrCapped: the lease is not renewed any more because the maximum renewal time is over.
var ErrCapped = errors.New("lease reached its renewal limit")

// releaseTimeout bounds the release after the work, in addition to the source's own bounds.
const releaseTimeout = 10 * time.Second

// HeldLease is a lease held by this process.
type HeldLease interface {
	// Grant returns the grant to present with each write. It fails once the lease is over.
	Grant() (fence.Grant, error)
	// Context ends with the lease; its cause says why.
	Context() context.Context
	// Release gives the lease back, within its own time limit. [ErrLost]: it was over before.
	Release(ctx context.Context) error
}

// Under runs work under a lease and releases it afterwards, also if work panics. The context of work has ctx's values
// and ends with ctx or with the lease; context.Cause says which. Under always waits for work to return, so work must
// observe its context.
//
// The error is work's. If the lease was over before work returned, it is joined with [ErrLost], even if work returned
// nil: another holder may have had the resource, and the fence may have refused some writes. A release that
// does not reach enough servers does not change the result: the lease expires by itself.
func Under(ctx context.Context, held HeldLease, work func(context.Context, fence.Grant) error) (err error) {
	defer func() {
		free, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if released := held.Release(free); errors.Is(released, ErrLost) && !errors.Is(err, ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	grant, err := held.Grant()
	if err != nil {
		return err
	}
	lease := held.Context()
	inside, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lease, func() { cancel(context.Cause(lease)) })()
	err = work(&under{inside, lease, cancel}, grant)
	if lease.Err() != nil && !errors.Is(err, ErrLost) {
		return errors.Join(err, context.Cause(lease))
	}
	return err
}

// under is the context of work. It ends no later than the lease's context, even if that one checks the clock and its
// timers have not fired.
type under struct {
	context.Context
	lease  context.Context
	cancel context.CancelCauseFunc
}

func (u *under) look() {
	if u.lease.Err() != nil {
		u.cancel(context.Cause(u.lease))
	}
}

func (u *under) Err() error {
	u.look()
	return u.Context.Err()
}

func (u *under) Done() <-chan struct{} {
	u.look()
	return u.Context.Done()
}

// Do acquires a lease, waiting until ctx ends, renews it while work runs, and releases it; see [Under]. It renews for
// at most limit, so that stuck work cannot keep a resource forever; 0 is [DefaultRenewal]. If the lease ends early, the
// cause of work's context is [ErrLost], joined with [ErrCapped] or with the error of the renewals.
func Do(
	ctx context.Context, source Source, r Request, limit time.Duration, work func(context.Context, fence.Grant) error,
) error {
	switch {
	case limit < 0:
		return &fence.InvalidError{Field: "renewal", Reason: fmt.Sprintf("is %v; it must be positive, or 0 for %v", limit, DefaultRenewal)}
	case r.SealHash != nil:
		return &fence.InvalidError{Field: "seal hash", Reason: "is for a lease whose grant another presents; work under Do presents it itself"}
	}
	lease, err := One(source.Acquire(ctx, UntilDone, r))
	if err != nil {
		return err
	}
	return Under(ctx, keep(ctx, source, lease, r.TTL, cmp.Or(limit, DefaultRenewal)), work)
}

// kept is a lease that is renewed in the background.
type kept struct {
	source Source
	lease  Lease
	ttl    time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when the renewals have stopped

	mu       sync.Mutex
	deadline clock.Instant
	timer    *time.Timer
	why      error // why it is not renewed any more
}

func keep(ctx context.Context, source Source, lease Lease, ttl, limit time.Duration) *kept {
	k := &kept{source: source, lease: lease, ttl: ttl, deadline: lease.Deadline, ended: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(k.deadline.Left(), k.expire)
	go k.renew(limit)
	return k
}

// expire ends the lease at its deadline.
func (k *kept) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.deadline.Passed() {
		k.cancel(errors.Join(fmt.Errorf("lease of %q: %w", k.lease.Grant.Resource, ErrLost), k.why))
	}
}

// renew renews the lease until it is over, released, or the renewal time has passed.
func (k *kept) renew(limit time.Duration) {
	defer close(k.ended)
	end := k.lease.Deadline.Now().Add(limit)
	err := renewal.Lease{
		TTL: k.ttl, Deadline: k.until, Extend: k.extend, Passing: Retryable,
		Before: func(context.Context) error {
			if end.Passed() {
				return ErrCapped
			}
			return nil
		},
	}.Keep(k.ctx)
	switch {
	case k.ctx.Err() != nil:
	case errors.Is(err, ErrLost):
		k.cancel(err)
	default:
		k.mu.Lock()
		defer k.mu.Unlock()
		k.why = err
	}
}

func (k *kept) until() clock.Instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deadline
}

func (k *kept) extend(ctx context.Context) error {
	deadline, err := k.source.Extend(ctx, k.lease.Ref(), k.ttl)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() == nil { // otherwise it is over already, and the cause stays
		k.deadline = deadline
		k.timer.Reset(k.deadline.Left())
	}
	return nil
}

// Grant fails once the lease is over.
func (k *kept) Grant() (fence.Grant, error) {
	if k.Context().Err() != nil {
		return fence.Grant{}, context.Cause(k.ctx)
	}
	return k.lease.Grant, nil
}

// Context returns a context that checks the clock on each call.
func (k *kept) Context() context.Context { return keptContext{k.ctx, k} }

type keptContext struct {
	context.Context
	k *kept
}

func (c keptContext) Err() error {
	c.k.expire()
	return c.Context.Err()
}

func (c keptContext) Done() <-chan struct{} {
	c.k.expire()
	return c.Context.Done()
}

// errReleased is the cause of a released lease's context.
var errReleased = errors.New("lease was released")

// Release stops the renewals first.
func (k *kept) Release(ctx context.Context) error {
	k.expire()
	lost := context.Cause(k.ctx)
	k.cancel(errReleased)
	k.timer.Stop()
	<-k.ended
	err := k.source.Release(ctx, k.lease.Ref()) // also if lost: a server may still have it
	if lost != nil {
		return lost
	}
	return err
}
