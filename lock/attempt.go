package lock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// maxArms bounds how often one acquisition offers the fence a new token.
const maxArms = 4

// attempt is one acquisition from first send to lease. Its owner id is fresh:
// one that two attempts shared broke uniqueness.
type attempt struct {
	l        *Locker
	resource string
	owner    string
	seal     fence.Seal
	o        acquireOptions
	start    instant
	deadline instant // start + validity
	token    fence.Token
	may      uint32 // nodes on which the lock may be ours, one bit each
	granted  uint32 // nodes that granted in the last phase 1
	counters [maxNodes]int64
}

func (a *attempt) lease(ctx context.Context) *Lease {
	grant := fence.Grant{Resource: a.resource, Token: a.token, Seal: a.seal}
	s := newSession(ctx, a.l, grant, a.owner, a.o.ttl, a.deadline)
	s.granted = bits.OnesCount32(a.granted)
	if a.o.keepAlive != nil {
		s.keepAlive(*a.o.keepAlive)
	}
	return &Lease{s: s}
}

// giveBack undoes a failed attempt, also with a cancelled context: it waits for nobody.
func (a *attempt) giveBack() { a.l.giveBack(a.resource, a.owner, a.o.ttl, a.may) }

// complete takes the lock and makes its token good.
func (a *attempt) complete(ctx context.Context, floor fence.Token) error {
	if err := a.take(ctx, floor); err != nil || a.l.cfg.Armer == nil {
		return err
	}
	return a.armOrRaise(ctx)
}

// armOrRaise arms. Where the fence stands higher Redis forgot, or another is
// newer: if the lock is still ours this takes it again above the recorded
// token; else it is held.
func (a *attempt) armOrRaise(ctx context.Context) error {
	for arms := 1; ; arms++ {
		err := a.arm(ctx)
		var low *fence.NotRaisedError
		if !errors.As(err, &low) || arms == maxArms {
			return err
		}
		if err := a.take(ctx, low.Recorded); err != nil {
			return err
		}
	}
}

// take is the part of an acquisition that Redis decides. Arming decides
// uniqueness and order by itself, so an acquisition that will be armed needs no
// confirm.
func (a *attempt) take(ctx context.Context, floor fence.Token) error {
	var err error
	if a.token, err = a.phase1(ctx, floor); err != nil || a.l.cfg.Armer != nil {
		return err
	}
	return a.confirm(ctx, a.token)
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
func (a *attempt) arm(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, a.deadline.mono)
	defer cancel()
	return a.armed(ctx, a.l.cfg.Armer.Arm(ctx, a.arming()))
}

func (a *attempt) arming() fence.Arming {
	return fence.Arming{Resource: a.resource, Token: a.token, SealHash: a.seal.Hash(), Holder: a.o.holder}
}

// armed is what arming's result means for the acquisition.
func (a *attempt) armed(ctx context.Context, err error) error {
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
	return fmt.Errorf("arm %q with token %d: %w", a.resource, a.token, err)
}
