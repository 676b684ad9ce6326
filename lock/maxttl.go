package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// limits are the longest TTL that nodes grant, and the longest that a lease may still have. They differ while
// [Locker.SetMaxTTL] changes them.
type limits struct{ granted, longest time.Duration }

func (a limits) or(b limits) limits {
	return limits{max(a.granted, b.granted), max(a.longest, b.longest)}
}

// limits returns the group's limits, as its admitted nodes keep them, and how long a quarantine lasts. If no admitted
// node answers, the last limits that this process saw count, else its own MaxTTL. A node that is not admitted may have
// been set back to older limits: they only lengthen a quarantine.
func (l *Locker) limits(states []nodeState) (group limits, quarantine time.Duration) {
	var kept limits
	for _, st := range states {
		if st.err != nil {
			continue
		}
		kept = kept.or(st.limits)
		if st.admitted {
			group = group.or(st.limits)
		}
	}
	if group.longest > 0 {
		return group, max(group.longest, kept.longest)
	}
	group = l.lastLimits()
	if group.longest == 0 {
		own := cmp.Or(l.cfg.MaxTTL, DefaultMaxTTL)
		group = limits{cmp.Or(kept.granted, own), own}
	}
	group.longest = max(group.longest, kept.longest, group.granted)
	return group, group.longest
}

// quarantine is how long the quarantine of a lost node lasts.
func (l *Locker) quarantine(states []nodeState) time.Duration {
	_, d := l.limits(states)
	return d
}

// noteLimits notes the limits of the nodes that are admitted.
func (l *Locker) noteLimits(states []nodeState) {
	var group limits
	for _, st := range states {
		if st.err == nil && st.admitted {
			group = group.or(st.limits)
		}
	}
	if group.longest > 0 {
		l.noted.Store(&group)
	}
}

// lastLimits is what this process last saw of the group's limits; zero: nothing.
func (l *Locker) lastLimits() limits {
	if noted := l.noted.Load(); noted != nil {
		return *noted
	}
	return limits{}
}

// longestTTL is the longest TTL that a lease may have, as far as this process knows.
func (l *Locker) longestTTL() time.Duration {
	return max(l.lastLimits().longest, cmp.Or(l.cfg.MaxTTL, DefaultMaxTTL))
}

// checkMaxTTL refuses a Locker that allows longer leases than its group does.
func (l *Locker) checkMaxTTL(states []nodeState) error {
	if admitted(states) == 0 {
		return nil
	}
	if group, _ := l.limits(states); l.cfg.MaxTTL > group.longest {
		return &fence.InvalidError{Field: "max ttl", Reason: fmt.Sprintf(
			"is %v, and the nodes grant at most %v: use no longer one, or run first: fencegate nodes max-ttl %[1]v", l.cfg.MaxTTL, group.granted)}
	}
	return nil
}

// overMaxError: the TTL is longer than the nodes grant. It is a [*fence.InvalidError].
type overMaxError struct{ ttl, most time.Duration }

func (e *overMaxError) invalid() *fence.InvalidError {
	return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf(
		"is %v, and the nodes grant at most %v: use a shorter one, or run: fencegate nodes max-ttl %[1]v", e.ttl, e.most)}
}

func (e *overMaxError) Error() string { return e.invalid().Error() }

func (e *overMaxError) Unwrap() error { return e.invalid() }

func overNodeMax(ttl time.Duration, maxMS int64) error {
	return &overMaxError{ttl, time.Duration(maxMS) * time.Millisecond}
}

// SetMaxTTL changes the longest TTL that the group's nodes grant, whatever Config.MaxTTL is. All nodes have to be
// admitted. A longer TTL is granted once every node, and every process that looks after the nodes, knows of it: after
// 5 s. A shorter one is in force at once; SetMaxTTL then waits until every longer lease has ended, after which
// quarantines are shorter too. After an error, also of ctx, no quarantine is too short for a lease, and the nodes may
// grant either TTL: call it again.
func (l *Locker) SetMaxTTL(ctx context.Context, ttl time.Duration) error {
	if err := l.keyed(ctx); err != nil {
		return err
	}
	if err := l.cfg.validateMaxTTL(ttl); err != nil {
		return err
	}
	if err := l.setMaxTTL(ctx, ttl.Truncate(time.Millisecond)); err != nil {
		return fmt.Errorf("set the longest TTL to %v: %w", ttl, err)
	}
	return nil
}

func (l *Locker) setMaxTTL(ctx context.Context, ttl time.Duration) error {
	states, change := l.read(ctx), newID()
	if err := l.limitAll(ctx, states, change, "begin", ttl); err != nil {
		return err
	}
	longest, err := l.unchanged(ctx, states, change)
	if err != nil {
		return err
	}
	wait := noticeTime
	if longest > ttl {
		wait = max(wait, longest+time.Duration(float64(longest)*l.cfg.DriftFactor)+driftFloor)
	}
	if err := pause(ctx, wait); err != nil {
		return fmt.Errorf("wait until every process knows of it, and every longer lease has ended: %w", err)
	}
	if _, err := l.unchanged(ctx, states, change); err != nil {
		return err
	}
	return l.limitAll(ctx, states, change, "end", ttl)
}

// noticeTime is how long a change waits at least: processes that look after the nodes, every one to two seconds, know of
// the longest TTL then. If all nodes lose their data, they are what remembers it.
const noticeTime = 5 * time.Second

// unchanged returns the longest TTL that a lease may still have. It fails unless all nodes still have their
// incarnations, and no other change has begun.
func (l *Locker) unchanged(ctx context.Context, before []nodeState, change string) (longest time.Duration, err error) {
	for i, st := range l.read(ctx) {
		err := st.err
		if err == nil && (!st.admitted || st.incarnation != before[i].incarnation || st.change != change) {
			err = errOtherChange
		}
		if err != nil {
			return 0, &NodeError{Node: l.nodes[i].name, Err: err}
		}
		longest = max(longest, st.limits.longest)
	}
	return longest, nil
}

var (
	errOtherChange = errors.New("the node was lost, or another change of the longest TTL has begun: repeat it")
	limitScript    = redis.NewScript(limitText)
)

// limitAll runs limit.lua on all nodes, which have to be admitted as they were found.
func (l *Locker) limitAll(ctx context.Context, states []nodeState, change, step string, ttl time.Duration) error {
	for i, st := range states {
		err := st.err
		if err == nil && !st.admitted {
			err = quarantined(st)
		}
		if err != nil {
			return &NodeError{Node: l.nodes[i].name, Err: err}
		}
	}
	errs := make([]error, len(l.nodes))
	l.each(func(i int, n *node) {
		done, err := limitScript.Run(ctx, n.client, []string{n.keys.h}, states[i].incarnation, change, step, ttl.Milliseconds()).Slice()
		switch {
		case err != nil:
			errs[i] = &NodeError{Node: n.name, Err: serverError(err)}
		case integer(done, 0) != 1:
			errs[i] = &NodeError{Node: n.name, Err: errOtherChange}
		}
	})
	return errors.Join(errs...)
}
