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

// endTimeout bounds how long a release waits for the fence. The lock is freed in any case.
const endTimeout = 500 * time.Millisecond

// endGrant makes the fence refuse the grant of a lease that is being released, if there is an Armer. If that fails, the
// grant stays current until the next acquisition, like that of an expired lease. sealHash is nil if only the token is
// known.
func (l *Locker) endGrant(ctx context.Context, ref leasing.Ref, sealHash []byte) {
	if l.cfg.Armer == nil || ref.Token <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	inside, end := l.begin(ctx, "end", ref.Resource)
	err := l.cfg.Armer.End(inside, fence.Ending{Resource: ref.Resource, Token: ref.Token, SealHash: sealHash})
	if errors.Is(err, fence.ErrStale) {
		err = nil // a newer grant has superseded it
	}
	if end(err); err != nil {
		l.cfg.Logger.WarnContext(ctx, "the fence did not end the grant of a released lease; it stays current until the next acquisition",
			"resource", ref.Resource, "token", ref.Token, "error", err)
	}
}

// Extend gives a lease a new TTL, counted from now, by its reference, so any process can call it. It returns the
// new deadline. It never re-creates a lock that is gone: the error is [ErrLost]. It does not
// shorten a lease either, so a late message takes nothing away from a holder.
//
// If too few nodes answer, it retries for a second, or for the node timeout if that is longer, because the reference
// does not contain the lease's deadline. Without a quorum ([ErrNoQuorum]) the lease is still valid until its old
// deadline.
func (l *Locker) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	return l.extend(ctx, ref, ttl, l.clock.Now().Add(l.roundLimit()))
}

// extend tries until it has a quorum, finds that the lease is lost, or has no time left.
func (l *Locker) extend(ctx context.Context, ref leasing.Ref, ttl time.Duration, until clock.Instant) (clock.Instant, error) {
	ctx, end := l.begin(ctx, "extend", ref.Resource)
	deadline, err := l.extendRounds(ctx, ref, ttl, until)
	end(err)
	if err != nil {
		l.cfg.Metrics.Failed("extend", cause(err))
		return clock.Instant{}, err
	}
	l.cfg.Metrics.Renewed()
	return deadline, nil
}

func (l *Locker) extendRounds(ctx context.Context, ref leasing.Ref, ttl time.Duration, until clock.Instant) (clock.Instant, error) {
	if err := validateRef(ref); err != nil {
		return clock.Instant{}, err
	}
	if err := l.cfg.validateTTL(ttl); err != nil {
		return clock.Instant{}, err
	}
	ttl = ttl.Truncate(time.Millisecond)
	ctx, done, err := l.life.Open(ctx)
	if err != nil {
		return clock.Instant{}, fmt.Errorf("extend %q: %w", ref.Resource, err)
	}
	defer done()
	if err := l.group.AwaitKeys(ctx); err != nil {
		return clock.Instant{}, fmt.Errorf("extend %q: %w", ref.Resource, err)
	}
	for failed := 0; ; failed++ {
		deadline, again, err := l.extendRound(ctx, ref, ttl, until)
		if err == nil || !again {
			return deadline, err
		}
		left := until.Left()
		wait := l.dice.Between(firstPause, max(left/8, firstWait), failed) // shorter ones would never come to the end
		if left <= 0 || admission.Pause(ctx, min(left, wait)) != nil || until.Passed() {
			return deadline, err
		}
	}
}

// roundLimit is how long nodes may be silent during an extension, which can use its lease's remaining time, before it
// is retried, and how long messages of an acquisition may be queued.
func (l *Locker) roundLimit() time.Duration { return max(node.StallTimeout, 2*l.cfg.NodeTimeout) }

// extendRound makes one round. Only its own answers count, and the TTL runs from its own start. It reports whether
// another round may reach a quorum.
func (l *Locker) extendRound(ctx context.Context, ref leasing.Ref, ttl time.Duration, until clock.Instant) (deadline clock.Instant, again bool, err error) {
	start := l.clock.Now()
	deadline = start.Add(l.validity(ttl))
	r := l.newRound(node.OpExtend, "extend", ref.Resource)
	defer r.drop()
	r.traced(ctx)
	end := start.Add(admission.RoundTime)
	until = until.Earlier(end)
	r.send(l.all(), node.Ask{Owner: ref.Owner, TTL: ttl.Milliseconds(), Expires: until.Time()})
	err = r.waitUntil(ctx, until)
	if r.yes < l.quorum {
		for i := range r.ops {
			r.ops[i].Abandon() // the next round sends its own
		}
	}
	switch {
	case err != nil:
		return clock.Instant{}, false, fmt.Errorf("extend %q: %w", ref.Resource, errors.Join(fence.ErrUnknown, err))
	case r.yes >= l.quorum && end.Passed() && !deadline.Passed():
		r.late()
		return clock.Instant{}, l.life.Calls.Err() == nil, r.noQuorum()
	case r.yes >= l.quorum && !deadline.Passed():
		return deadline, false, nil
	case r.maxTTL > 0:
		return clock.Instant{}, false, fmt.Errorf("extend %q: %w", ref.Resource, overNodeMax(ttl, r.maxTTL))
	case r.yes >= l.quorum:
		return clock.Instant{}, true, fmt.Errorf("extend %q: the TTL of %v ended before it was extended: %w", ref.Resource, ttl, ErrLost)
	case r.no > len(l.nodes)-l.quorum:
		return clock.Instant{}, false, fmt.Errorf("extend %q: %w", ref.Resource, ErrLost)
	}
	missing := l.group.QuorumError("extend", ref.Resource, r.causes)
	return clock.Instant{}, missing.MayReturn() && l.life.Calls.Err() == nil, missing
}
