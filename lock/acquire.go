package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// AcquireOption changes one acquisition.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	ttl       time.Duration
	holder    string
	keepAlive *KeepAlive
	sealHash  []byte // of the caller's seal; nil: the attempt makes one
	nonceHash []byte // for the Armer
	owner     *Owner // nil: nobody who may have it already
	atOnce    bool   // one try, whatever tries says
	tries     int    // 0: until the context ends
	delay     time.Duration
	waited    time.Duration // for other calls of its owner
}

// WithTTL sets how long the lease lives unless it is extended. From the longest
// TTL down to [MinTTL]; whole milliseconds count.
func WithTTL(ttl time.Duration) AcquireOption { return func(o *acquireOptions) { o.ttl = ttl } }

// WithHolder names the holder for people: UTF-8 without control characters, at most 256 bytes.
func WithHolder(name string) AcquireOption { return func(o *acquireOptions) { o.holder = name } }

func (l *Locker) options(resource string, opts []AcquireOption) (acquireOptions, error) {
	o := acquireOptions{ttl: l.cfg.DefaultTTL, holder: l.cfg.Holder}
	for _, opt := range opts {
		opt(&o)
	}
	if err := fence.ValidateResource(resource); err != nil {
		return o, err
	}
	if err := l.cfg.validateTTL(o.ttl); err != nil {
		return o, err
	}
	o.ttl = o.ttl.Truncate(time.Millisecond)
	return o, cmp.Or(o.keepAlive.validate(), validateHolder(o.holder), o.validateTries())
}

// Acquire takes the lease of a resource, waiting while another holds it, and while
// too few nodes answer, until ctx ends: the error is then a [*leasing.HeldError] or
// a [*QuorumError], why it waited last, joined with the context's. Any other
// failure returns at once, as does a quorum that is missing until a person mends
// the nodes; see [Locker.TryAcquire].
//
// Callers of this Locker get a resource in the order in which they asked. The
// first of each Locker stands in a queue on a node (the resource's home), and a
// release wakes the first of that queue only.
func (l *Locker) Acquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	return l.leased(ctx, resource, opts, false)
}

// Do acquires the lease of a resource, as [Locker.Acquire] does, renews it while work runs, and
// releases it, also where work panics. The context of work ends with ctx or with the
// lease, whose end is its cause then; [leasing.Under] says what the error is. The lease is
// renewed for at most an hour, unless [WithKeepAlive] says otherwise; one that its [Owner]
// held before is renewed, too, until work returns.
func (l *Locker) Do(ctx context.Context, resource string, work func(context.Context, fence.Grant) error, opts ...AcquireOption) error {
	renewed := WithKeepAlive(KeepAlive{For: leasing.DefaultRenewal})
	lease, err := l.Acquire(ctx, resource, append([]AcquireOption{renewed}, opts...)...)
	if err != nil {
		return err
	}
	return leasing.Under(ctx, lease, work)
}

func (l *Locker) acquire(ctx context.Context, resource string, o acquireOptions) (*attempt, error) {
	if o.tries > 0 {
		return l.acquireWithin(ctx, resource, o)
	}
	begun := time.Now()
	a, err := l.patiently(ctx, resource, o)
	return l.measured(a, err, begun)
}

func (l *Locker) patiently(ctx context.Context, resource string, o acquireOptions) (*attempt, error) {
	var a *attempt
	ctx, end := l.begin(ctx, "acquire", resource)
	err := l.waiting(ctx, resource, func(floor fence.Token) error {
		var err error
		a, err = l.attempt(ctx, resource, o, floor, (*attempt).complete)
		return err
	})
	end(err)
	return a, err
}

// leased makes a lease of what an acquisition gets.
func (l *Locker) leased(ctx context.Context, resource string, opts []AcquireOption, atOnce bool) (*Lease, error) {
	o, err := l.options(resource, opts)
	if err != nil {
		return nil, err
	}
	acquire := l.acquire
	if o.atOnce = atOnce; atOnce {
		acquire = l.tryAcquire
	}
	take := func(o acquireOptions) (*Lease, error) {
		a, err := acquire(ctx, resource, o)
		if err != nil {
			return nil, err
		}
		return a.lease(ctx), nil
	}
	if o.owner != nil {
		return o.owner.lease(ctx, holding{l, resource}, o, take)
	}
	return take(o)
}

// measured reports the end of an acquisition.
func (l *Locker) measured(a *attempt, err error, begun time.Time) (*attempt, error) {
	if err != nil {
		l.cfg.Metrics.Failed("acquire", cause(err))
		return nil, err
	}
	l.cfg.Metrics.Acquired(time.Since(begun), bits.OnesCount32(a.granted))
	return a, nil
}

// waiting calls try until it says something else than that the resource is
// held, or ctx ends. This process's callers take turns.
func (l *Locker) waiting(ctx context.Context, resource string, try func(floor fence.Token) error) error {
	w := l.lines.enter(resource)
	defer l.lines.leave(resource, w)
	_, end := l.begin(ctx, "wait", resource)
	err := w.await(ctx)
	if end(err); err != nil {
		return fmt.Errorf("%w: %w", l.lines.why(resource, w), err)
	}
	place := place{l: l, resource: resource, w: w}
	defer place.leave()
	var floor fence.Token
	var why error // it waits
	for {
		err := try(floor)
		var held *refusedError
		var missing *QuorumError
		var wait func() error
		switch {
		case err == nil:
			return nil
		case errors.As(err, &held):
			why, floor = held, max(floor, held.floor)
			wait = func() error { return place.wait(ctx, held.RetryAfter) }
		case errors.As(err, &missing) && missing.mayReturn() && ctx.Err() == nil:
			why = err
			wait = func() error { return place.pause(ctx) }
		case why != nil && ctx.Err() != nil:
			return fmt.Errorf("%w: %w", l.lines.why(resource, w), err) // ended while it looked again
		default:
			return err
		}
		l.lines.waits(resource, why)
		_, end := l.begin(ctx, "wait", resource)
		err = wait()
		if end(err); err != nil {
			return fmt.Errorf("%w: %w", l.lines.why(resource, w), err)
		}
	}
}

// TryAcquire takes the lease of a resource if nobody holds it.
//
// The errors: a [*leasing.HeldError], a [*QuorumError], [ErrLost] where the time ran
// out on the way, a [*fence.InvalidError], an arming error, or the context's.
// Nothing is acquired then; what single nodes granted is given back. An arming
// error joined with [fence.ErrUnknown] may have raised the fence, which only
// makes older grants stale.
func (l *Locker) TryAcquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	return l.leased(ctx, resource, opts, true)
}

func (l *Locker) tryAcquire(ctx context.Context, resource string, o acquireOptions) (*attempt, error) {
	begun := time.Now()
	ctx, end := l.begin(ctx, "acquire", resource)
	a, err := l.attempt(ctx, resource, o, 0, (*attempt).complete)
	end(err)
	return l.measured(a, err, begun)
}

// attempt makes one acquisition, as far as step goes. A TTL that is longer than any in use is recorded first.
func (l *Locker) attempt(
	ctx context.Context, resource string, o acquireOptions, floor fence.Token,
	step func(*attempt, context.Context, fence.Token) error,
) (*attempt, error) {
	a, err := l.attemptTwice(ctx, resource, o, floor, step)
	if over, ok := errors.AsType[*overMaxError](err); ok {
		if err = l.longer(ctx, over); err != nil {
			return nil, fmt.Errorf("acquire %q: %w", resource, err)
		}
		a, err = l.attemptTwice(ctx, resource, o, floor, step)
	}
	return a, err
}

// attemptTwice makes an attempt, and where that may help another one.
func (l *Locker) attemptTwice(
	ctx context.Context, resource string, o acquireOptions, floor fence.Token,
	step func(*attempt, context.Context, fence.Token) error,
) (*attempt, error) {
	for again := false; ; again = true {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		a := &attempt{l: l, resource: resource, o: o, owner: newID()}
		if o.sealHash == nil {
			a.seal = fence.NewSeal()
			a.o.sealHash = a.seal.Hash()
		}
		err := a.try(ctx, floor, step)
		if err == nil {
			return a, nil
		}
		if !again && errors.Is(err, ErrExhausted) {
			if raiseErr := l.nextEpoch(ctx, a.start.mono); raiseErr != nil {
				return nil, errors.Join(err, raiseErr)
			}
		}
		if again || !errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrNodeTimeout) {
			return nil, err
		}
		// Connections may have died unnoticed with a node's last run, and a
		// node may have been admitted again under a new incarnation: both are
		// known now. So once more: a new attempt, with a new owner.
	}
}

// try goes as far as step does. What fails on the way is given back, also where
// an Armer panics.
func (a *attempt) try(ctx context.Context, floor fence.Token, step func(*attempt, context.Context, fence.Token) error) error {
	taken := false
	defer func() {
		if !taken {
			a.giveBack()
		}
	}()
	ctx, end := a.l.begin(ctx, "attempt", a.resource)
	err := step(a, ctx, floor)
	end(err)
	taken = err == nil
	return err
}
