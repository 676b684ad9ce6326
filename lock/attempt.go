package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// maxArms bounds how often one acquisition offers a new token to the fence.
const maxArms = 4

// attempt is one acquisition, from the first message to the lease. Each has a new owner ID: sharing one between two
// attempts broke uniqueness.
type attempt struct {
	l        *Locker
	resource string
	owner    string
	seal     fence.Seal // zero if only the caller has it
	o        acquireOptions
	start    clock.Instant
	deadline clock.Instant // start + validity
	token    fence.Token
	may      uint32 // nodes on which the lock may be ours, one bit each
	granted  uint32 // nodes that granted in the last phase 1
	raised   bool   // the fence may stand at token
	counters [maxNodes]int64
}

func (a *attempt) lease(ctx context.Context) *Lease {
	grant := fence.Grant{Resource: a.resource, Token: a.token, Seal: a.seal}
	s := newSession(ctx, a.l, grant, a.owner, a.o.ttl, a.deadline)
	if a.o.keepAlive != nil {
		s.keepAlive(s.context(), *a.o.keepAlive)
	}
	return &Lease{s: s}
}

// giveBack undoes a failed attempt in the background, even with a cancelled context.
func (a *attempt) giveBack() { a.l.giveBack(a.resource, a.owner, a.o.ttl, a.may) }

// repeatable reports whether a failed attempt may have become the lease of a repeated request: once the fence is
// raised, another process can tell from the caller's seal whose lease it is, extend it and return it. Then only its
// TTL ends it.
func (a *attempt) repeatable() bool { return a.raised && a.o.repeatable && a.seal.IsZero() }

// complete takes the lock and establishes its token.
func (a *attempt) complete(ctx context.Context, floor fence.Token) error {
	if err := a.take(ctx, floor); err != nil || a.l.cfg.Armer == nil {
		return err
	}
	return a.armOrRaise(ctx)
}

// armOrRaise arms. If the fence has a higher token, Redis lost counters, or a newer acquisition came between. If the
// lock is still ours, armOrRaise takes it again above the recorded token; otherwise the resource is held.
func (a *attempt) armOrRaise(ctx context.Context) error {
	for arms := 1; ; arms++ {
		err := a.arm(ctx)
		var low *fence.NotRaisedError
		if !errors.As(err, &low) || arms == maxArms {
			return err
		}
		if low.Recorded >= admission.LastToken {
			return admission.UsedUpError(a.resource)
		}
		if err := a.take(ctx, low.Recorded); err != nil {
			return err
		}
	}
}

// take is the Redis part of an acquisition. Arming ensures uniqueness and order by itself, so an acquisition that
// will be armed needs no confirm.
func (a *attempt) take(ctx context.Context, floor fence.Token) error {
	var err error
	if a.l.cfg.Armer != nil {
		floor = max(floor, a.l.cfg.Armer.Floor(a.resource))
	}
	inside, end := a.l.begin(ctx, "take", a.resource)
	a.token, err = a.phase1(inside, floor)
	if end(err); err != nil || a.l.cfg.Armer != nil {
		return err
	}
	return a.confirm(ctx, a.token)
}

// phase1 takes the lock on a quorum and returns the highest of its counters.
func (a *attempt) phase1(ctx context.Context, floor fence.Token) (fence.Token, error) {
	l := a.l
	if err := l.ask(ctx); err != nil {
		return 0, fmt.Errorf("acquire %q: %w", a.resource, cutShort{err})
	}
	defer l.answered()
	a.start = l.clock.Now() // before the first send: the TTL runs from some later moment
	a.deadline = a.start.Add(l.validity(a.o.ttl))
	l.attempts.Add(1)
	if l.dice(l.group.SweepEvery) == 0 { // at random, because many processes end before they reach so many tries
		l.group.SweepSometimes()
	}
	r := l.newRound(node.OpAcquire, "acquire", a.resource)
	defer r.drop()
	r.traced(ctx)
	r.send(l.all(), node.Ask{
		Owner: a.owner, Holder: a.o.holder, TTL: a.o.ttl.Milliseconds(), N: int64(floor),
		Expires: a.start.Add(admission.RoundTime).Earlier(a.deadline).Time(), // later it could lock after a release
	})
	end := a.start.Add(admission.RoundTime)
	err := r.within(ctx, end)
	granted := r.yes >= l.quorum
	if granted && end.Passed() {
		granted = false
		r.late()
	}
	a.granted, a.counters = r.granted, r.counters
	a.may |= r.may
	for i := range l.nodes {
		// Nodes that have not answered. A message that was not sent yet is abandoned, unless the lock was granted:
		// then it is sent so that the node's counter rises, too.
		if bit := uint32(1) << i; r.pending&bit != 0 && (granted || !r.ops[i].Abandon()) {
			a.may |= bit
		}
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("acquire %q: %w", a.resource, cutShort{err})
	case granted && a.deadline.Passed():
		return 0, fmt.Errorf("acquire %q: the TTL of %v ended before a quorum had granted: %w", a.resource, a.o.ttl, ErrLost)
	case granted:
		return fence.Token(r.top), nil
	case r.maxTTL > 0:
		return 0, fmt.Errorf("acquire %q: %w", a.resource, overNodeMax(a.o.ttl, r.maxTTL))
	case r.no > 0 && r.yes < l.quorum && r.no+r.yes >= l.quorum, r.no > len(l.nodes)-l.quorum:
		return 0, r.heldError()
	}
	return 0, r.noQuorum()
}

// confirm raises the granting nodes' counters to the token, unless a quorum already returned it.
//
// Quorums intersect, but the node in the intersection may not have the maximum: without this step 17 % of serial
// tokens did not rise.
func (a *attempt) confirm(ctx context.Context, token fence.Token) (failure error) {
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
	ctx, end := l.begin(ctx, "confirm", a.resource)
	defer func() { end(failure) }()
	r := l.newRound(node.OpConfirm, "confirm", a.resource)
	defer r.drop()
	r.traced(ctx)
	r.yes = confirmed
	r.send(set, node.Ask{Owner: a.owner, N: int64(token), Expires: time.Now().Add(l.roundLimit())})
	err := r.wait(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("acquire %q: %w", a.resource, cutShort{err})
	case r.yes >= l.quorum && a.deadline.Passed():
		return fmt.Errorf("acquire %q: the TTL of %v ended before a quorum had confirmed: %w", a.resource, a.o.ttl, ErrLost)
	case r.yes >= l.quorum:
		return nil
	case r.no > 0:
		return &refusedError{HeldError: leasing.HeldError{Resource: a.resource}, floor: token}
	}
	return r.noQuorum()
}

// arm raises the fence to the token.
func (a *attempt) arm(ctx context.Context) error {
	ctx, cancel := a.deadline.Bound(ctx)
	defer cancel()
	inside, end := a.l.begin(ctx, "arm", a.resource)
	a.raised = true
	err := a.l.cfg.Armer.Arm(inside, a.arming())
	end(err)
	a.raised = mayRaise(ctx, err)
	return a.armed(ctx, err)
}

// mayRaise reports whether the fence may be raised after arming with this result, for a lease that may begin.
func mayRaise(ctx context.Context, err error) bool {
	return err == nil || errors.Is(err, fence.ErrUnknown) || ctx.Err() != nil && !errors.Is(err, fence.ErrNotRaised)
}

func (a *attempt) arming() fence.Arming {
	return fence.Arming{Resource: a.resource, Token: a.token, SealHash: a.o.sealHash, Holder: a.o.holder}
}

// armed interprets the result of arming for the acquisition.
func (a *attempt) armed(ctx context.Context, err error) error {
	switch {
	case err == nil && a.deadline.Passed():
		return fmt.Errorf("acquire %q: the TTL of %v ended while the fence was raised: %w", a.resource, a.o.ttl, ErrLost)
	case err == nil:
		return nil
	case errors.Is(err, fence.ErrNotRaised):
		return err
	case mayRaise(ctx, err) && !errors.Is(err, fence.ErrUnknown):
		err = errors.Join(err, fence.ErrUnknown)
	}
	return fmt.Errorf("arm %q with token %d: %w", a.resource, a.token, err)
}
