package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// Limits returns the group's limits, as its admitted nodes keep them, and how long a quarantine lasts. If no admitted
// node answers, the last limits that this process saw count, else its own MaxTTL. A node that is not admitted may have
// been set back to older limits: they only lengthen a quarantine.
func (g *Group) Limits(states []node.State) (group node.Limits, quarantine time.Duration) {
	var kept node.Limits
	for _, st := range states {
		if st.Err != nil {
			continue
		}
		kept = kept.Or(st.Limits)
		if st.Admitted {
			group = group.Or(st.Limits)
		}
	}
	if group.Longest > 0 {
		return group, max(group.Longest, kept.Longest)
	}
	group = g.LastLimits()
	if group.Longest == 0 {
		own := cmp.Or(g.cfg.MaxTTL, DefaultMaxTTL)
		group = node.Limits{Granted: cmp.Or(kept.Granted, own), Longest: own}
	}
	group.Longest = max(group.Longest, kept.Longest, group.Granted)
	return group, group.Longest
}

// quarantine is how long the quarantine of a lost node lasts.
func (g *Group) quarantine(states []node.State) time.Duration {
	_, d := g.Limits(states)
	return d
}

// noteLimits notes the limits of the nodes that are admitted.
func (g *Group) noteLimits(states []node.State) {
	var group node.Limits
	for _, st := range states {
		if st.Err == nil && st.Admitted {
			group = group.Or(st.Limits)
		}
	}
	if group.Longest > 0 {
		g.noted.Store(&group)
	}
}

// LastLimits is what this process last saw of the group's limits; zero: nothing.
func (g *Group) LastLimits() node.Limits {
	if noted := g.noted.Load(); noted != nil {
		return *noted
	}
	return node.Limits{}
}

// LongestTTL is the longest TTL that a lease may have, as far as this process knows.
func (g *Group) LongestTTL() time.Duration {
	return max(g.LastLimits().Longest, cmp.Or(g.cfg.MaxTTL, DefaultMaxTTL))
}

// checkMaxTTL refuses a Locker that allows longer leases than its group does.
func (g *Group) checkMaxTTL(states []node.State) error {
	if admitted(states) == 0 {
		return nil
	}
	if group, _ := g.Limits(states); g.cfg.MaxTTL > group.Longest {
		return &fence.InvalidError{Field: "max ttl", Reason: fmt.Sprintf(
			"is %v, and the nodes grant at most %v: use no longer one, or run first: fencegate nodes max-ttl %[1]v", g.cfg.MaxTTL, group.Granted)}
	}
	return nil
}

// SetMaxTTL is admin.Admin.SetMaxTTL.
func (g *Group) SetMaxTTL(ctx context.Context, ttl time.Duration) error {
	if err := g.AwaitKeys(ctx); err != nil {
		return err
	}
	if err := ValidateMaxTTL(ttl, g.cfg.MinTTL); err != nil {
		return err
	}
	if err := g.setMaxTTL(ctx, ttl.Truncate(time.Millisecond)); err != nil {
		return fmt.Errorf("set the longest TTL to %v: %w", ttl, err)
	}
	return nil
}

func (g *Group) setMaxTTL(ctx context.Context, ttl time.Duration) error {
	states, change := g.Read(ctx), node.NewID()
	if err := g.LimitAll(ctx, states, change, "begin", ttl); err != nil {
		return err
	}
	longest, err := g.unchanged(ctx, states, change)
	if err != nil {
		return err
	}
	wait := noticeTime
	if longest > ttl {
		wait = max(wait, longest+time.Duration(float64(longest)*g.cfg.DriftFactor)+DriftFloor)
	}
	if err := Pause(ctx, wait); err != nil {
		return fmt.Errorf("wait until every process knows of it, and every longer lease has ended: %w", err)
	}
	if _, err := g.unchanged(ctx, states, change); err != nil {
		return err
	}
	return g.LimitAll(ctx, states, change, "end", ttl)
}

// noticeTime is how long a change waits at least: processes that look after the nodes, every one to two seconds, know of
// the longest TTL then. If all nodes lose their data, they are what remembers it.
const noticeTime = 5 * time.Second

// unchanged returns the longest TTL that a lease may still have. It fails unless all nodes still have their
// incarnations, and no other change has begun.
func (g *Group) unchanged(ctx context.Context, before []node.State, change string) (longest time.Duration, err error) {
	for i, st := range g.Read(ctx) {
		err := st.Err
		if err == nil && (!st.Admitted || st.Incarnation != before[i].Incarnation || st.Change != change) {
			err = node.ErrOtherChange
		}
		if err != nil {
			return 0, &node.NodeError{Node: g.Nodes[i].Name, Err: err}
		}
		longest = max(longest, st.Limits.Longest)
	}
	return longest, nil
}

// LimitAll runs limit.lua on all nodes, which have to be admitted as they were found.
func (g *Group) LimitAll(ctx context.Context, states []node.State, change, step string, ttl time.Duration) error {
	for i, st := range states {
		err := st.Err
		if err == nil && !st.Admitted {
			err = quarantined(st)
		}
		if err != nil {
			return &node.NodeError{Node: g.Nodes[i].Name, Err: err}
		}
	}
	errs := make([]error, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		if err := n.Limit(ctx, states[i].Incarnation, change, step, ttl); err != nil {
			errs[i] = &node.NodeError{Node: n.Name, Err: err}
		}
	})
	return errors.Join(errs...)
}

// MaxMaxTTL bounds the longest TTL, and so the length of a quarantine.
const MaxMaxTTL = 24 * time.Hour

// ValidateMaxTTL checks a longest TTL against the shortest TTL of a lease.
func ValidateMaxTTL(ttl, shortest time.Duration) error {
	if ttl < shortest || ttl > MaxMaxTTL {
		return &fence.InvalidError{Field: "max ttl", Reason: fmt.Sprintf("is %v; allowed is %v to 24h", ttl, shortest)}
	}
	return nil
}

// DefaultMaxTTL is the longest TTL of a group that was not given another.
const DefaultMaxTTL = time.Minute
