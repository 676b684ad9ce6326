package fault

import (
	"fmt"
	"time"
)

// rule lists faults that must not overlap, because the product guarantees nothing for the combination, or because one
// would undo the other.
type rule struct {
	first, then []string // names, or prefixes of names
	// gap is how long after the end of every first a then may begin. They never overlap, in either order.
	gap  time.Duration
	mode mode
	why  string
}

type mode int

const (
	always mode = iota
	synchronous
	asynchronous
)

// replication lists the faults between the two servers that make the standby lag.
var replication = func() []string {
	var all []string
	for _, kind := range netKinds {
		all = append(all, "net-"+kind.name+"/postgres-postgres")
	}
	return append(all, "pg-standby-freeze")
}()

var (
	servers   = append([]string{"pg-crash", "pg-freeze", "pg-failover", "rolling-pg"}, replication...)
	forgetful = []string{"redis-kill", "redis-older", "redis-empty", "redis-flush", "rolling-redis", "nodes-sweep"}
)

// rules are all the combinations that a plan omits. It keeps everything for which docs/lock.md and docs/operations.md
// give a guarantee: with arming, every node may lose everything at any time.
var rules = []rule{
	{
		first: servers, then: servers, gap: time.Second,
		why: "each of them begins with a primary and a standby that run: an operator promotes no server that stands still",
	},
	{
		first: []string{"pg-crash", "pg-freeze", "rolling-pg", "pg-failover"}, then: []string{"pg-terminate"},
		why: "who ends sessions has to log in",
	},
	{
		first: append([]string{"pg-terminate", "pg-crash", "rolling-pg"}, replication...), then: []string{"pg-failover"},
		gap: 8 * time.Second, mode: synchronous,
		why: "a commit whose wait for the standby an operator or a crash ended is seen before the standby has it; " +
			"promoting a standby that has not caught up loses what was seen",
	},
	{
		first: forgetful, then: []string{"pg-failover"}, gap: 5 * time.Second, mode: asynchronous,
		why: "gateways keep on the nodes which PostgreSQL they serve: where the nodes forget, too, they can't notice",
	},
	{
		first: []string{"pg-failover"}, then: forgetful, gap: 5 * time.Second, mode: asynchronous,
		why: "as before: the new identity is on the nodes at the gateways' next look",
	},
	{
		first: []string{"sweep"}, then: []string{"pg-failover"}, gap: 10 * time.Second, mode: asynchronous,
		why: "a grace that is shorter than the standby's lag deletes the bytes that the lost commits replaced",
	},
	{
		first: []string{"rolling"}, then: []string{"rolling", "gateway", "redis", "pg", "blobs", "net", "busy"}, gap: 0,
		why: "a rolling restart is done to a system that is otherwise in order, and waits for that",
	},
}

// onceARound lists the faults that a round has at most once: each takes most of a round.
var onceARound = []string{"pg-failover", "rolling"}

// near and far bound the offset of a clock.
//
// A lock that a node took while its clock was ahead lasts longer by the offset once the clock is right again, unless it
// is released (docs/lock.md, known limits). On a quorum of nodes that would block a resource. So only one node of a round
// has a large offset, and each round has its own resources.
const (
	near = 3 * time.Second
	far  = 6 * time.Hour
)

// farNode is the node whose clock may have a large offset in a round.
func farNode(round, nodes int) int { return round % nodes }

// end is the latest end of an event, according to the plan.
func (e Event) end() time.Duration {
	f, _ := lookup(e.Fault)
	return e.At + e.For + f.Tail
}

// forbidden returns why an event can't be part of the plan; "": it can.
func forbidden(plan []Event, e Event, async bool) string {
	for _, name := range onceARound {
		for _, other := range plan {
			if is(e.Fault, name) && is(other.Fault, name) {
				return fmt.Sprintf("%s: once a round", name)
			}
		}
	}
	for _, r := range rules {
		if r.mode == synchronous && async || r.mode == asynchronous && !async {
			continue
		}
		for _, other := range plan {
			if r.parts(other, e) || r.parts(e, other) {
				return r.why
			}
		}
	}
	return ""
}

// parts reports whether the rule excludes these two, in these roles.
func (r rule) parts(first, then Event) bool {
	return isAny(first.Fault, r.first) && isAny(then.Fault, r.then) &&
		first.At < then.end() && then.At < first.end()+r.gap
}
