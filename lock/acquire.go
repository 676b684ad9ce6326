package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// AcquireOption changes one acquisition.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	ttl       time.Duration
	holder    string
	keepAlive *KeepAlive
}

// WithTTL sets how long the lease lives unless it is extended. From the longest
// TTL down to [MinTTL]; whole milliseconds count.
func WithTTL(ttl time.Duration) AcquireOption { return func(o *acquireOptions) { o.ttl = ttl } }

// WithHolder names the holder for people, at most 256 bytes.
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
	return o, cmp.Or(o.keepAlive.validate(), validateHolder(o.holder))
}

// Bounds of the wait between two tries of [Locker.Acquire].
const (
	firstWait = 2 * time.Millisecond
	maxWait   = 250 * time.Millisecond
)

// Acquire takes the lease of a resource, waiting while another holds it, until
// ctx ends: the error is then a [*HeldError] joined with the context's. Any
// other failure returns at once; see [Locker.TryAcquire].
func (l *Locker) Acquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.options(resource, opts)
	if err != nil {
		return nil, err
	}
	var floor fence.Token
	var held *HeldError // why it waits
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		lease, err := l.try(ctx, resource, o, floor)
		switch {
		case err == nil:
			return lease, nil
		case errors.As(err, &held):
		case held != nil && ctx.Err() != nil:
			return nil, errors.Join(held, err) // ended while it looked again
		default:
			return nil, err
		}
		floor = max(floor, held.floor)
		// Jitter keeps waiters from colliding again and again. The lock's own
		// expiry is the best hint when it comes sooner.
		pause := wait/2 + rand.N(wait/2+1)
		if held.RetryAfter > 0 && held.RetryAfter < pause {
			pause = held.RetryAfter + rand.N(firstWait)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.Join(held, context.Cause(ctx))
		case <-l.ctx.Done():
			timer.Stop()
			return nil, errors.Join(held, ErrClosed)
		}
	}
}

// TryAcquire takes the lease of a resource if nobody holds it.
//
// The errors: a [*HeldError], a [*QuorumError], [ErrLost] where the time ran
// out on the way, a [*fence.InvalidError], an arming error, or the context's.
// Nothing is acquired then; what single nodes granted is given back. An arming
// error joined with [fence.ErrUnknown] may have raised the fence, which only
// makes older grants stale.
func (l *Locker) TryAcquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.options(resource, opts)
	if err != nil {
		return nil, err
	}
	return l.try(ctx, resource, o, 0)
}

func (l *Locker) try(ctx context.Context, resource string, o acquireOptions, floor fence.Token) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	lease, err := l.attempt(ctx, resource, o, floor)
	if errors.Is(err, ErrNoQuorum) && !errors.Is(err, ErrNodeTimeout) {
		// Connections may have died unnoticed with a node's last run, and a
		// node may have been admitted again under a new incarnation: both are
		// known now. So once more: a new attempt, with a new owner.
		return l.attempt(ctx, resource, o, floor)
	}
	return lease, err
}

// maxArms bounds how often one acquisition offers the fence a new token.
const maxArms = 4

// attempt is one acquisition from first send to lease.
type attempt struct {
	l        *Locker
	resource string
	owner    string
	o        acquireOptions
	start    instant
	deadline instant // start + validity
	may      uint32  // nodes on which the lock may be ours, one bit each
	granted  uint32  // nodes that granted in the last phase 1
	counters [maxNodes]int64
}

func (l *Locker) attempt(ctx context.Context, resource string, o acquireOptions, floor fence.Token) (*Lease, error) {
	a := &attempt{l: l, resource: resource, o: o, owner: newID()}
	seal := fence.NewSeal()
	token, err := a.acquire(ctx, floor, seal)
	if err != nil {
		// Also with a cancelled ctx: this waits for nobody.
		l.giveBack(resource, a.owner, o.ttl, a.may)
		return nil, err
	}
	grant := fence.Grant{Resource: resource, Token: token, Seal: seal}
	s := newSession(ctx, l, grant, a.owner, o.ttl, a.deadline)
	if o.keepAlive != nil {
		s.keepAlive(*o.keepAlive)
	}
	return &Lease{s: s}, nil
}

func (a *attempt) acquire(ctx context.Context, floor fence.Token, seal fence.Seal) (fence.Token, error) {
	for arms := 1; ; arms++ {
		token, err := a.phase1(ctx, floor)
		if err != nil {
			return 0, err
		}
		if a.l.cfg.Armer == nil {
			return token, a.confirm(ctx, token)
		}
		// Arming decides uniqueness and order by itself, so no confirm.
		err = a.arm(ctx, token, seal)
		var low *fence.NotRaisedError
		if !errors.As(err, &low) || arms == maxArms {
			return token, err
		}
		// Redis forgot, or another is newer. If the lock is still ours, this
		// takes it again above the recorded token; else it is held.
		floor = max(floor, low.Recorded)
	}
}

// phase1 takes the lock on a quorum and returns the highest of its counters.
func (a *attempt) phase1(ctx context.Context, floor fence.Token) (fence.Token, error) {
	l := a.l
	a.start = now() // before the first send: the TTL runs from some moment after it
	a.deadline = a.start.add(l.validity(a.o.ttl))
	a.granted = 0
	template := op{
		kind: opAcquire, key: l.keys.lock(a.resource), field: counterField(a.resource),
		owner: a.owner, holder: a.o.holder, ttl: a.o.ttl.Milliseconds(), n: int64(floor),
		expires: a.start.mono.Add(l.cfg.NodeTimeout),
	}
	r := round{l: l, operation: "acquire", resource: a.resource}
	held := HeldError{Resource: a.resource}
	var granted, refused, failed int
	var top int64
	var other error
	err := r.run(ctx, &template, l.all(), func(rep reply) bool {
		bit := uint32(1) << rep.node
		switch {
		case rep.err != nil:
			failed++
			if rep.sent {
				a.may |= bit
			}
		case rep.n > 0:
			granted++
			a.may |= bit
			a.granted |= bit
			a.counters[rep.node] = rep.n
			top = max(top, rep.n)
		case rep.n == codeRefused:
			refused++
			held.note(rep)
		default:
			failed++
			other = refusal(rep, a)
			r.cause(rep.node, other)
		}
		return granted >= l.quorum || refused+failed > len(l.nodes)-l.quorum
	})
	// The silent nodes: what was not sent never will be.
	for i := range l.nodes {
		if bit := uint32(1) << i; r.pending&bit != 0 {
			if granted >= l.quorum || !r.ops[i].abandon() {
				a.may |= bit
			}
		}
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("acquire %q: %w", a.resource, err)
	case granted >= l.quorum && a.deadline.passed():
		return 0, fmt.Errorf("acquire %q: the TTL of %v ran out on the way: %w", a.resource, a.o.ttl, ErrLost)
	case granted >= l.quorum:
		return fence.Token(top), nil
	case other != nil && errors.Is(other, fence.ErrInvalid):
		return 0, other
	case refused > 0 && refused+granted >= l.quorum, refused > len(l.nodes)-l.quorum:
		held.split(l, granted)
		return 0, &held
	}
	return 0, r.noQuorum()
}

// note keeps the latest expiry and the highest counter seen.
func (e *HeldError) note(rep reply) {
	e.floor = max(e.floor, fence.Token(rep.floor))
	if after := time.Duration(rep.pttl) * time.Millisecond; after >= e.RetryAfter {
		e.RetryAfter, e.Holder = after, rep.holder
	}
}

// split forgets the holder where several attempts may have collided: nobody
// has the lock then, and the first expiry says nothing.
func (e *HeldError) split(l *Locker, granted int) {
	if granted > len(l.nodes)-l.quorum {
		e.Holder, e.RetryAfter = "", 0
	}
}

// refusal is the error of a node that refused for another reason than a holder.
func refusal(rep reply, a *attempt) error {
	if rep.n == codeMaxTTL {
		return overNodeMax(a.o.ttl, rep.pttl)
	}
	return ErrExhausted
}

// confirm brings the granting nodes to the token, unless a quorum already
// returned it.
//
// Quorums intersect, but the node in the intersection need not hold the
// maximum: without this step 17 % of serial tokens did not rise.
func (a *attempt) confirm(ctx context.Context, token fence.Token) error {
	l := a.l
	var set uint32
	confirmed := 0
	for i := range l.nodes {
		switch bit := uint32(1) << i; {
		case a.granted&bit == 0:
		case a.counters[i] == int64(token):
			confirmed++
		default:
			set |= bit
		}
	}
	if confirmed >= l.quorum {
		return nil // the fast path: one round trip
	}
	template := op{
		kind: opConfirm, key: l.keys.lock(a.resource), field: counterField(a.resource),
		owner: a.owner, n: int64(token), expires: time.Now().Add(l.cfg.NodeTimeout),
	}
	r := round{l: l, operation: "confirm", resource: a.resource}
	lost := 0
	err := r.run(ctx, &template, set, func(rep reply) bool {
		switch {
		case rep.err != nil:
		case rep.n > 0:
			confirmed++
		default:
			lost++
		}
		return confirmed >= l.quorum
	})
	switch {
	case err != nil:
		return fmt.Errorf("acquire %q: %w", a.resource, err)
	case confirmed >= l.quorum && a.deadline.passed():
		return fmt.Errorf("acquire %q: the TTL of %v ran out on the way: %w", a.resource, a.o.ttl, ErrLost)
	case confirmed >= l.quorum:
		return nil
	case lost > 0:
		return &HeldError{Resource: a.resource, floor: token}
	}
	return r.noQuorum()
}

// arm raises the fence to the token.
func (a *attempt) arm(ctx context.Context, token fence.Token, seal fence.Seal) error {
	ctx, cancel := context.WithDeadline(ctx, a.deadline.mono)
	defer cancel()
	err := a.l.cfg.Armer.Arm(ctx, fence.Arming{
		Resource: a.resource, Token: token, SealHash: seal.Hash(), Holder: a.o.holder,
	})
	switch {
	case err == nil && a.deadline.passed():
		return fmt.Errorf("acquire %q: the TTL of %v ran out while arming: %w", a.resource, a.o.ttl, ErrLost)
	case err == nil:
		return nil
	case errors.Is(err, fence.ErrNotRaised):
		return err
	case ctx.Err() != nil && !errors.Is(err, fence.ErrUnknown):
		err = errors.Join(err, fence.ErrUnknown)
	}
	return fmt.Errorf("arm %q with token %d: %w", a.resource, token, err)
}
