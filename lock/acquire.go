package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/internal/renewal"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// AcquireOption changes one acquisition.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	ttl        time.Duration
	holder     string
	keepAlive  *KeepAlive
	sealHash   []byte // of the caller's seal; nil: the attempt creates a seal
	repeatable bool   // see [leasing.Request]
	owner      *Owner // nil: no owner
	atOnce     bool   // one try
}

// WithTTL sets how long the lease lives unless it is extended: whole milliseconds between [leasing.MinTTL] and Config.MaxTTL,
// no longer than the nodes grant.
func WithTTL(ttl time.Duration) AcquireOption { return func(o *acquireOptions) { o.ttl = ttl } }

// WithHolder sets the holder's display name: UTF-8 without control characters, at most 200 bytes.
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
	return o, cmp.Or(o.keepAlive.validate(), leasing.ValidateHolder(o.holder))
}

// Acquire takes the lease of a resource. While another holds it, or too few nodes answer, it waits until ctx ends.
// The error is then a [*leasing.HeldError] or a [*QuorumError], the last reason for the wait, joined with the
// context's. Any other failure returns at once, and so does a missing quorum that an operator has to repair; see
// [Locker.TryAcquire].
//
// Callers of this Locker get a resource in the order of their calls. The first caller of each Locker stands in a
// queue on one node (the resource's home), and a release wakes only the first of that queue.
func (l *Locker) Acquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	return l.leased(ctx, resource, opts, false)
}

// Do acquires the lease of a resource, as [Locker.Acquire] does, renews it while work runs, and releases it, also if
// work panics. The context of work ends with ctx or with the lease, and its cause says which; [leasing.Under]
// describes the error. The lease is renewed for at most an hour, unless [WithKeepAlive] says otherwise. A lease that
// its [Owner] already held is renewed too, until work returns.
func (l *Locker) Do(ctx context.Context, resource string, work func(context.Context, fence.Grant) error, opts ...AcquireOption) error {
	renewed := WithKeepAlive(KeepAlive{For: leasing.DefaultRenewal})
	lease, err := l.Acquire(ctx, resource, append([]AcquireOption{renewed}, opts...)...)
	if err != nil {
		return err
	}
	return leasing.Under(ctx, lease, work)
}

// acquire makes one acquisition, which waits as wait says.
func (l *Locker) acquire(ctx context.Context, resource string, o acquireOptions, wait patience) (*attempt, error) {
	begun := time.Now()
	var a *attempt
	ctx, end := l.begin(ctx, "acquire", resource)
	err := l.acquiring(ctx, func(ctx context.Context) error {
		return wait(ctx, resource, func(floor fence.Token) (err error) {
			a, err = l.attempt(ctx, resource, o, floor, (*attempt).complete)
			return err
		})
	})
	end(err)
	return l.measured(a, err, begun)
}

// leased acquires and returns the [Lease].
func (l *Locker) leased(ctx context.Context, resource string, opts []AcquireOption, atOnce bool) (*Lease, error) {
	o, err := l.options(resource, opts)
	if err != nil {
		return nil, err
	}
	wait := l.waiting
	if o.atOnce = atOnce; atOnce {
		wait = once
	}
	take := func(o acquireOptions) (*Lease, error) {
		a, err := l.acquire(ctx, resource, o, wait)
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

// measured reports the result of an acquisition to the metrics.
func (l *Locker) measured(a *attempt, err error, begun time.Time) (*attempt, error) {
	if err != nil {
		l.cfg.Metrics.Failed("acquire", cause(err))
		return nil, err
	}
	l.cfg.Metrics.Acquired(time.Since(begun), bits.OnesCount32(a.granted))
	return a, nil
}

// waiting calls try until it returns something else than "held", or ctx ends. Callers in this process take turns.
func (l *Locker) waiting(ctx context.Context, resource string, try func(floor fence.Token) error) error {
	w := l.lines.Enter(resource)
	defer w.Leave()
	_, end := l.begin(ctx, "wait", resource)
	err := w.Await(ctx)
	if end(err); err != nil {
		return err
	}
	place := place{l: l, resource: resource, w: w}
	defer place.leave()
	var floor fence.Token
	var why error // the reason for the wait
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
		case errors.As(err, &missing) && missing.MayReturn() && ctx.Err() == nil:
			why = err
			wait = func() error { return place.pause(ctx) }
		case why != nil && ctx.Err() != nil:
			return leases.Ended(w.Why(), err) // ctx ended during a try
		default:
			return err
		}
		w.Waits(why)
		_, end := l.begin(ctx, "wait", resource)
		err = wait()
		if end(err); err != nil {
			return leases.Ended(w.Why(), err)
		}
	}
}

// TryAcquire takes the lease of a resource if it is free.
//
// The errors: a [*leasing.HeldError]; a [*QuorumError]; [ErrLost] if the TTL ended during the acquisition; a
// [*fence.InvalidError]; an arming error; or the context's. After an error nothing is acquired, and locks on single
// nodes are given back. An arming error joined with [fence.ErrUnknown] may have raised the fence, which only makes
// older grants stale.
func (l *Locker) TryAcquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	return l.leased(ctx, resource, opts, true)
}

// attempt makes one acquisition, up to step, and a second one if that may help.
func (l *Locker) attempt(
	ctx context.Context, resource string, o acquireOptions, floor fence.Token,
	step func(*attempt, context.Context, fence.Token) error,
) (*attempt, error) {
	for again := false; ; again = true {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		a := &attempt{l: l, resource: resource, o: o, owner: node.NewID()}
		if o.sealHash == nil {
			a.seal = fence.NewSeal()
			a.o.sealHash = a.seal.Hash()
		}
		err := a.try(ctx, floor, step)
		if err == nil {
			return a, nil
		}
		if !again && errors.Is(err, ErrExhausted) {
			var stuck error
			if floor, stuck = l.group.AfterExhausted(ctx, resource, a.start.Time(), floor); errors.Is(stuck, fence.ErrInvalid) {
				return nil, stuck // another attempt would not help
			} else if stuck != nil {
				return nil, errors.Join(err, stuck)
			}
		}
		if again || !errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrNodeTimeout) {
			return nil, err
		}
		// Connections may have broken unnoticed when a node restarted, or a node may have been admitted again under a
		// new incarnation. Both are known now, so a second attempt, with a new owner, can succeed.
	}
}

// try runs step. If it fails, or an Armer panics, the locks are given back, unless a repeat may have them.
func (a *attempt) try(ctx context.Context, floor fence.Token, step func(*attempt, context.Context, fence.Token) error) error {
	taken := false
	defer func() {
		if !taken && !a.repeatable() {
			a.giveBack()
		}
	}()
	ctx, end := a.l.begin(ctx, "attempt", a.resource)
	err := step(a, ctx, floor)
	end(err)
	taken = err == nil
	return err
}

// AcquireAll takes the leases of several resources, all or none. It waits until ctx ends while others hold some of
// them. The leases come in the order of the given names; a name given twice is an error. The options apply to each
// lease.
//
// Locks are taken in the byte order of the names, so that two callers cannot deadlock. Arming follows in the same
// order, in one transaction. While it waits for one lock, it renews those that
// it has.
func (l *Locker) AcquireAll(ctx context.Context, resources []string, opts ...AcquireOption) ([]*Lease, error) {
	asked := make([]acquisition, len(resources))
	for i, resource := range resources { // before any of them is taken
		o, err := l.options(resource, opts)
		if err != nil {
			return nil, err
		}
		if o.owner != nil {
			return nil, &fence.InvalidError{Field: "options", Reason: "name an owner, which is for one resource"}
		}
		asked[i] = acquisition{resource, o}
	}
	taken, err := l.acquireAllMeasured(ctx, asked, l.waiting)
	if err != nil {
		return nil, err
	}
	leases := make([]*Lease, len(taken))
	for i, a := range taken {
		leases[i] = a.lease(ctx)
	}
	return leases, nil
}

// acquisition is one resource of several.
type acquisition struct {
	resource string
	o        acquireOptions
}

// patience is [Locker.waiting], or a single try of a held lock.
type patience func(ctx context.Context, resource string, try func(floor fence.Token) error) error

func once(_ context.Context, _ string, try func(floor fence.Token) error) error { return try(0) }

// acquireAllMeasured reports the result to the metrics: each acquired lease, or one failure.
func (l *Locker) acquireAllMeasured(ctx context.Context, asked []acquisition, wait patience) ([]*attempt, error) {
	begun := time.Now()
	var taken []*attempt
	err := l.acquiring(ctx, func(ctx context.Context) (err error) {
		taken, err = l.acquireAll(ctx, asked, wait)
		return err
	})
	if err != nil {
		_, err = l.measured(nil, err, begun)
		return nil, err
	}
	for _, a := range taken {
		_, _ = l.measured(a, nil, begun)
	}
	return taken, nil
}

// acquireAll takes and arms all, and returns them in the order of the request.
func (l *Locker) acquireAll(ctx context.Context, asked []acquisition, wait patience) ([]*attempt, error) {
	if err := leasing.Distinct(asked, func(one acquisition) string { return one.resource }); err != nil {
		return nil, err
	}
	order := slices.SortedFunc(slices.Values(asked), func(a, b acquisition) int { return strings.Compare(a.resource, b.resource) })
	names := make([]string, len(order))
	for i, one := range order {
		names[i] = one.resource
	}
	taken := make(map[string]*attempt, len(order))
	complete := false
	defer func() {
		if complete || repeatable(names, taken) {
			return
		}
		for _, a := range taken {
			a.giveBack()
		}
	}()
	for _, one := range order {
		if err := l.takeNext(ctx, one, taken, wait); err != nil {
			return nil, err
		}
	}
	if err := l.armAll(ctx, names, taken); err != nil {
		return nil, err
	}
	complete = true
	all := make([]*attempt, len(asked))
	for i, one := range asked {
		all[i] = taken[one.resource]
	}
	return all, nil
}

// repeatable is [attempt.repeatable] for several: a repeat returns all leases or none.
func repeatable(names []string, taken map[string]*attempt) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return taken[name] == nil || !taken[name].repeatable() })
}

// takeNext takes one more lock, and renews the others while it waits. If one of those is lost, takeNext fails, even if it
// got the next one at that moment.
func (l *Locker) takeNext(ctx context.Context, one acquisition, taken map[string]*attempt, wait patience) error {
	keep := make([]func(context.Context) error, 0, len(taken))
	for _, a := range taken {
		keep = append(keep, a.renew)
	}
	inside, stop := renewal.While(ctx, keep)
	err := wait(inside, one.resource, func(floor fence.Token) error {
		a, err := l.attempt(inside, one.resource, one.o, floor, (*attempt).take)
		if err == nil {
			taken[one.resource] = a
		}
		return err
	})
	if lost := stop(); lost != nil {
		return lost
	}
	return err
}

// renew renews a lock before it becomes a lease, until ctx ends.
func (a *attempt) renew(ctx context.Context) error {
	return renewal.Lease{
		TTL: a.o.ttl, Deadline: func() clock.Instant { return a.deadline }, Random: a.l.dice,
		Passing: func(err error) bool { return Retryable(err) && !a.deadline.Passed() },
		Extend: func(ctx context.Context) error {
			deadline, err := a.l.extend(ctx, leasing.Ref{Resource: a.resource, Owner: a.owner}, a.o.ttl, a.deadline)
			switch {
			case err == nil:
				a.deadline = deadline
			case a.deadline.Passed() && !errors.Is(err, ErrLost):
				return a.ranOut()
			}
			return err
		},
	}.Keep(ctx)
}

// armAll arms what is taken, and checks every deadline afterwards.
func (l *Locker) armAll(ctx context.Context, order []string, taken map[string]*attempt) error {
	if l.cfg.Armer != nil {
		if err := l.armEach(ctx, order, taken); err != nil {
			return err
		}
	}
	for _, a := range taken {
		if a.deadline.Passed() {
			return a.ranOut()
		}
	}
	return nil
}

func (a *attempt) ranOut() error {
	return fmt.Errorf("acquire %q: the TTL of %v ran out while the others were acquired: %w", a.resource, a.o.ttl, ErrLost)
}

func (l *Locker) armEach(ctx context.Context, order []string, taken map[string]*attempt) error {
	deadline := taken[order[0]].deadline
	armings := make([]fence.Arming, len(order))
	for tries := 1; ; tries++ {
		for i, resource := range order {
			armings[i] = taken[resource].arming()
			deadline = deadline.Earlier(taken[resource].deadline)
		}
		bounded, cancel := deadline.Bound(ctx)
		inside, end := l.begin(bounded, "arm", order[0])
		err := l.cfg.Armer.Arm(inside, armings...)
		end(err)
		for _, a := range taken {
			a.raised = mayRaise(bounded, err)
		}
		err = taken[order[0]].armed(bounded, err)
		cancel()
		var low *fence.NotRaisedError
		if !errors.As(err, &low) || tries == maxArms+len(order) || taken[low.Resource] == nil {
			return err
		}
		if low.Recorded >= admission.LastToken {
			return admission.UsedUpError(low.Resource)
		}
		if err := taken[low.Resource].take(ctx, low.Recorded); err != nil {
			return err
		}
	}
}
