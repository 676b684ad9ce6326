package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// admitted counts the admitted nodes.
func admitted(states []node.State) (n int) {
	for _, st := range states {
		if st.Admitted {
			n++
		}
	}
	return n
}

// States asks all nodes at once. A node that is marked for the other mode is an error.
func (g *Group) States(ctx context.Context) []node.State {
	states := make([]node.State, len(g.Nodes))
	g.each(func(i int, n *node.Node) { states[i] = n.State(ctx) })
	g.noteLimits(states)
	return states
}

// NodeStatus is a node's health, for display and readiness checks.
type NodeStatus struct {
	Name       string
	Addr       string
	Admitted   bool          // it grants leases
	Quarantine time.Duration // remaining time of its quarantine; 0: none
	MaxTTL     time.Duration // the longest TTL that it grants; see admin.Admin.SetMaxTTL
	Epoch      int64
	RTT        time.Duration
	Clock      time.Duration // how far its clock is ahead of this machine's, give or take RTT; 0 if HasClock is false
	HasClock   bool          // it reported its time
	BestEffort bool          // it is marked for best effort; see lock.Config.BestEffort
	Durable    bool          // it was declared durable, and its settings were, when it was admitted; see lock.Node.Durable
	Watched    bool          // a failover and evicted keys are noticed: its admission and this process may ask for INFO
	Warning    string        // what an operator should change; "": nothing
	Err        error         // nil: it answered
}

const unwatched = "not watched: failovers and evicted keys go unnoticed, because INFO is refused or does not show them; allow its user INFO, and restart it"

// Status is admin.Admin.Status.
func (g *Group) Status(ctx context.Context) []NodeStatus {
	if g.AwaitKeys(ctx) != nil {
		return nil
	}
	status := make([]NodeStatus, len(g.Nodes))
	for i, st := range g.Read(ctx) {
		status[i] = NodeStatus{
			Name: g.Nodes[i].Name, Addr: g.cfg.Nodes[i].Addr,
			Admitted: st.Admitted, Quarantine: st.Quarantine, MaxTTL: st.Limits.Granted,
			Epoch: st.Base >> epochShift, RTT: st.RTT, Clock: st.Clock, HasClock: st.HasClock, Err: st.Err,
			BestEffort: node.IsBestEffort(st.Incarnation), Durable: st.Durable,
			Watched: st.Reign != "" && st.Said.Reign() != "",
		}
		status[i].Warning = g.Nodes[i].Warning(ctx, st)
		if st.Admitted && !status[i].Watched && !g.cfg.Embedded {
			status[i].Warning = cmp.Or(status[i].Warning, unwatched)
		}
		if st.Err == nil && !st.Admitted {
			g.nodeLost(g.Nodes[i])
		}
	}
	return status
}

// Ready reports whether the group can grant leases: nil, or a [*QuorumError] that says which nodes are missing and why.
// degraded says how many nodes take no part, without naming them; "": all do.
func (g *Group) Ready(ctx context.Context) (degraded string, err error) {
	if err := g.AwaitKeys(ctx); err != nil {
		return "", err
	}
	var causes []*node.NodeError
	out := 0
	for i, st := range g.States(ctx) {
		switch {
		case st.Err != nil:
			causes = append(causes, &node.NodeError{Node: g.Nodes[i].Name, Err: st.Err})
			if errors.Is(st.Err, node.ErrMode) {
				out++
			}
		case !st.Admitted:
			out++
			g.nodeLost(g.Nodes[i])
			causes = append(causes, &node.NodeError{Node: g.Nodes[i].Name, Err: quarantined(st)})
		}
	}
	if len(causes) > 0 {
		degraded = fmt.Sprintf("%d of %d Redis nodes take no part in leases, and %d are needed: %d away, %d not admitted",
			len(causes), len(g.Nodes), g.Quorum, len(causes)-out, out)
	}
	if len(g.Nodes)-len(causes) < g.Quorum {
		return degraded, g.QuorumError("ping", g.Keys.Prefix, causes)
	}
	return degraded, nil
}

// quarantined adds the remaining quarantine, if any, to the error of a node that is not admitted.
func quarantined(st node.State) error {
	if st.Quarantine > 0 {
		return &node.QuarantineError{Node: "it", Left: st.Quarantine}
	}
	return node.ErrQuarantined
}

// Inspect asks all nodes about resources, each node once, and answers in their order; each node is a member. It is for
// display: the answer may be outdated. The error is a [*fence.InvalidError], or a [*QuorumError] if too few nodes
// answered to decide whether some resource is locked; the inspections then still contain the other nodes' answers.
//
// A resource is locked if one acquisition holds a quorum. Its token is the highest counter, 0 if Redis has no record of
// an acquisition. Each waiter is a Locker, which may have several callers waiting.
func (g *Group) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	found, _, err := g.inspect(ctx, resources...)
	return found, err
}

// inspect also returns each node's answer about each resource.
func (g *Group) inspect(ctx context.Context, resources ...string) (found []leasing.Inspection, locks [][]node.Lock, err error) {
	for _, resource := range resources {
		if err := fence.ValidateResource(resource); err != nil {
			return nil, nil, err
		}
	}
	if err := g.AwaitKeys(ctx); err != nil {
		return nil, nil, err
	}
	said := make([][]node.Lock, len(g.Nodes))
	var asks sync.WaitGroup
	for i, n := range g.Nodes {
		asks.Go(func() { said[i] = n.Inspect(ctx, resources) })
	}
	asks.Wait()
	found, locks = make([]leasing.Inspection, len(resources)), make([][]node.Lock, len(resources))
	for at, resource := range resources {
		locks[at] = make([]node.Lock, len(g.Nodes))
		for i := range g.Nodes {
			locks[at][i] = said[i][at]
		}
		var failed error
		if found[at], failed = g.judged(resource, locks[at]); failed != nil && err == nil {
			err = failed
		}
	}
	return found, locks, err
}

// Owners returns the owners of the locks of a resource, on any node.
func (g *Group) Owners(ctx context.Context, resource string) ([]string, error) {
	_, locks, err := g.inspect(ctx, resource)
	if err != nil {
		return nil, err
	}
	owners := make(map[string]bool)
	for _, nl := range locks[0] {
		if nl.Locked {
			owners[nl.Owner] = true
		}
	}
	return slices.Sorted(maps.Keys(owners)), nil
}

// judged combines the nodes' answers.
func (g *Group) judged(resource string, all []node.Lock) (leasing.Inspection, error) {
	ins := leasing.Inspection{Resource: resource}
	var failed []*node.NodeError
	votes := make(map[string][]node.Lock)
	for _, nl := range all {
		switch {
		case nl.Err != nil:
			failed = append(failed, &node.NodeError{Node: nl.Name, Err: nl.Err})
		case nl.Locked:
			votes[nl.Owner] = append(votes[nl.Owner], nl)
		}
		ins.Token = max(ins.Token, nl.Token)
		ins.Waiters += nl.Waiters
		ins.Members = append(ins.Members, nl.Member)
	}
	most := 0
	for owner, locks := range votes {
		if len(locks) >= g.Quorum {
			ins.Locked, ins.Owner, ins.Holder, ins.TTL = true, owner, locks[0].Holder, quorumTTL(locks, g.Quorum)
		}
		most = max(most, len(locks))
	}
	if len(g.Nodes)-len(failed) < g.Quorum || !ins.Locked && most > 0 && most+len(failed) >= g.Quorum {
		return ins, g.QuorumError("inspect", resource, failed)
	}
	return ins, nil
}

// quorumTTL is the time until fewer than a quorum of locks are left; -1: never.
func quorumTTL(locks []node.Lock, quorum int) time.Duration {
	longest := time.Duration(-1)
	for _, candidate := range locks {
		if candidate.TTL < 0 {
			continue
		}
		outlast := 0
		for _, nl := range locks {
			if nl.TTL < 0 || nl.TTL >= candidate.TTL {
				outlast++
			}
		}
		if outlast >= quorum {
			longest = max(longest, candidate.TTL)
		}
	}
	return longest
}

// Read asks all nodes at once, whatever their mode.
func (g *Group) Read(ctx context.Context) []node.State {
	states := make([]node.State, len(g.Nodes))
	g.each(func(i int, n *node.Node) { states[i] = n.Read(ctx) })
	g.noteLimits(states)
	return states
}

// Leaks is admin.Admin.Leaks.
func (g *Group) Leaks(ctx context.Context) ([]node.Leak, error) {
	if err := g.AwaitKeys(ctx); err != nil {
		return nil, err
	}
	found := make([][]node.Leak, len(g.Nodes))
	errs := make([]error, len(g.Nodes))
	var scans sync.WaitGroup
	for i, n := range g.Nodes {
		scans.Go(func() {
			var err error
			if found[i], err = n.Leaks(ctx); err != nil {
				errs[i] = &node.NodeError{Node: n.Name, Err: err}
			}
		})
	}
	scans.Wait()
	var all []node.Leak
	for _, leaks := range found {
		all = append(all, leaks...)
	}
	return all, errors.Join(errs...)
}

// QuarantineLeft is admin.Admin.QuarantineLeft.
func (g *Group) QuarantineLeft(ctx context.Context) time.Duration {
	needed := g.Quorum
	var left []time.Duration
	for _, st := range g.Status(ctx) {
		switch {
		case st.Err != nil:
		case st.Admitted:
			needed--
		case st.Quarantine > 0:
			left = append(left, st.Quarantine)
		}
	}
	if needed <= 0 || needed > len(left) {
		return 0
	}
	slices.Sort(left)
	return left[needed-1]
}
