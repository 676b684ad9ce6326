package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// NodeStatus is a node's health, for display and readiness checks.
type NodeStatus struct {
	Name       string
	Addr       string
	Admitted   bool          // it grants leases
	Quarantine time.Duration // remaining time of its quarantine; 0: none
	MaxTTL     time.Duration // the longest TTL that it grants; see [Locker.SetMaxTTL]
	Epoch      int64
	RTT        time.Duration
	Clock      time.Duration // how far its clock is ahead of this machine's, give or take RTT; 0 if HasClock is false
	HasClock   bool          // it reported its time
	BestEffort bool          // it is marked for best effort; see [Config.BestEffort]
	Durable    bool          // it was declared durable, and its settings were, when it was admitted; see [Node.Durable]
	Watched    bool          // a failover and evicted keys are noticed: its admission and this process may ask for INFO
	Warning    string        // what an operator should change; "": nothing
	Err        error         // nil: it answered
}

const unguarded = "its primary accepts writes while no replica is near: cut off from its Sentinels it would go on granting beside its successor; set min-replicas-to-write"

const unwatched = "not watched: failovers and evicted keys go unnoticed, because INFO is refused or does not show them; allow its user INFO, and restart it"

// Status asks all nodes. While the prefix of the keys is not known it returns none. The group can grant leases while a
// quorum (more than half) is admitted.
func (l *Locker) Status(ctx context.Context) []NodeStatus {
	if l.keyed(ctx) != nil {
		return nil
	}
	status := make([]NodeStatus, len(l.nodes))
	for i, st := range l.read(ctx) {
		status[i] = NodeStatus{
			Name: l.nodes[i].name, Addr: l.cfg.Nodes[i].Addr,
			Admitted: st.admitted, Quarantine: st.quarantine, MaxTTL: st.limits.granted,
			Epoch: st.base >> epochShift, RTT: st.rtt, Clock: st.clock, HasClock: st.hasClock, Err: st.err,
			BestEffort: isBestEffort(st.incarnation), Durable: st.durable,
			Watched: st.reign != "" && st.said.reign() != "",
		}
		status[i].Warning = l.nodes[i].warning(ctx, st)
		if st.admitted && !status[i].Watched && !l.cfg.Embedded {
			status[i].Warning = cmp.Or(status[i].Warning, unwatched)
		}
		if st.err == nil && !st.admitted {
			l.nodeLost(l.nodes[i])
		}
	}
	return status
}

// Held is how many leases this Locker's callers hold. Leases of [Locker.Source] are not included: any process may end
// them.
func (l *Locker) Held() int { return int(l.held.Load()) }

// EachHeld calls visit with the resource of each of these leases.
func (l *Locker) EachHeld(visit func(resource string)) {
	l.sessions.Range(func(_, resource any) bool {
		visit(resource.(string))
		return true
	})
}

// Waiters is how many of this Locker's callers wait for a lease, or are making a try after which they would wait.
func (l *Locker) Waiters() int { return l.lines.Count() }

// Ready reports whether the group can grant leases: nil, or a [*QuorumError] that says which nodes are missing and why.
// degraded says how many nodes take no part, without naming them; "": all do.
func (l *Locker) Ready(ctx context.Context) (degraded string, err error) {
	if err := l.keyed(ctx); err != nil {
		return "", err
	}
	var causes []*NodeError
	out := 0
	for i, st := range l.states(ctx) {
		switch {
		case st.err != nil:
			causes = append(causes, &NodeError{Node: l.nodes[i].name, Err: st.err})
			if errors.Is(st.err, ErrMode) {
				out++
			}
		case !st.admitted:
			out++
			l.nodeLost(l.nodes[i])
			causes = append(causes, &NodeError{Node: l.nodes[i].name, Err: quarantined(st)})
		}
	}
	if len(causes) > 0 {
		degraded = fmt.Sprintf("%d of %d Redis nodes take no part in leases, and %d are needed: %d away, %d not admitted",
			len(causes), len(l.nodes), l.quorum, len(causes)-out, out)
	}
	if len(l.nodes)-len(causes) < l.quorum {
		return degraded, l.quorumError("ping", l.keys.prefix, causes)
	}
	return degraded, nil
}

// quarantined adds the remaining quarantine, if any, to the error of a node that is not admitted.
func quarantined(st nodeState) error {
	if st.quarantine > 0 {
		return &quarantineError{node: "it", left: st.quarantine}
	}
	return ErrQuarantined
}

// nodeLock is one node's view of a resource. A TTL of -1 is a leak: the lock never expires. Waiters are the Lockers
// in the queue on this node: the resource's home keeps it, or the next node while that is down.
type nodeLock struct {
	leasing.Member

	owner string
}

// Inspect asks all nodes about resources, each node once, and answers in their order; each node is a member. It is for
// display: the answer may be outdated. The error is a [*fence.InvalidError], or a [*QuorumError] if too few nodes
// answered to decide whether some resource is locked; the inspections then still contain the other nodes' answers.
//
// A resource is locked if one acquisition holds a quorum. Its token is the highest counter, 0 if Redis has no record of
// an acquisition. Each waiter is a Locker, which may have several callers waiting.
func (l *Locker) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	found, _, err := l.inspect(ctx, resources...)
	return found, err
}

// inspect also returns each node's answer about each resource.
func (l *Locker) inspect(ctx context.Context, resources ...string) (found []leasing.Inspection, locks [][]nodeLock, err error) {
	for _, resource := range resources {
		if err := fence.ValidateResource(resource); err != nil {
			return nil, nil, err
		}
	}
	if err := l.keyed(ctx); err != nil {
		return nil, nil, err
	}
	said := make([][]nodeLock, len(l.nodes))
	var asks sync.WaitGroup
	for i, n := range l.nodes {
		asks.Go(func() { said[i] = n.inspect(ctx, resources) })
	}
	asks.Wait()
	found, locks = make([]leasing.Inspection, len(resources)), make([][]nodeLock, len(resources))
	for at, resource := range resources {
		locks[at] = make([]nodeLock, len(l.nodes))
		for i := range l.nodes {
			locks[at][i] = said[i][at]
		}
		var failed error
		if found[at], failed = l.judged(resource, locks[at]); failed != nil && err == nil {
			err = failed
		}
	}
	return found, locks, err
}

// judged combines the nodes' answers.
func (l *Locker) judged(resource string, all []nodeLock) (leasing.Inspection, error) {
	ins := leasing.Inspection{Resource: resource}
	var failed []*NodeError
	votes := make(map[string][]nodeLock)
	for _, nl := range all {
		switch {
		case nl.Err != nil:
			failed = append(failed, &NodeError{Node: nl.Name, Err: nl.Err})
		case nl.Locked:
			votes[nl.owner] = append(votes[nl.owner], nl)
		}
		ins.Token = max(ins.Token, nl.Token)
		ins.Waiters += nl.Waiters
		ins.Members = append(ins.Members, nl.Member)
	}
	most := 0
	for owner, locks := range votes {
		if len(locks) >= l.quorum {
			ins.Locked, ins.Owner, ins.Holder, ins.TTL = true, owner, locks[0].Holder, quorumTTL(locks, l.quorum)
		}
		most = max(most, len(locks))
	}
	if len(l.nodes)-len(failed) < l.quorum || !ins.Locked && most > 0 && most+len(failed) >= l.quorum {
		return ins, l.quorumError("inspect", resource, failed)
	}
	return ins, nil
}

// quorumTTL is the time until fewer than a quorum of locks are left; -1: never.
func quorumTTL(locks []nodeLock, quorum int) time.Duration {
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

// inspect is one node's view of each resource, at one moment.
func (n *node) inspect(ctx context.Context, resources []string) []nodeLock {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	found := make([]nodeLock, len(resources))
	values, ttls := make([]*redis.StringCmd, len(resources)), make([]*redis.DurationCmd, len(resources))
	waiters := make([]*redis.IntCmd, len(resources))
	fields := make([]string, len(resources))
	var counters *redis.SliceCmd
	_, err := n.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for i, resource := range resources {
			values[i] = p.Get(ctx, n.keys.lock(resource))
			ttls[i] = p.PTTL(ctx, n.keys.lock(resource))
			waiters[i] = p.ZCard(ctx, n.keys.waitPrefix+resource)
			fields[i] = counterField(resource)
		}
		if len(fields) > 0 {
			counters = p.HMGet(ctx, n.keys.h, fields...)
		}
		return nil
	})
	for i := range found {
		nl := nodeLock{Member: leasing.Member{Name: n.name}}
		// The pipeline returns the first error: a lock that is free hides what follows.
		failed := cmp.Or(failure(err), failure(values[i].Err()), ttls[i].Err(), waiters[i].Err(), counters.Err())
		switch {
		case failed == nil && len(counters.Val()) != len(fields):
			nl.Err = serverError(errMalformed)
		case failed != nil:
			nl.Err = serverError(failed)
		case ttls[i].Val() == -2*time.Nanosecond: // go-redis' value for a missing key
		default:
			nl.read(values[i].Val(), ttls[i].Val())
		}
		if nl.Err == nil {
			nl.Waiters = int(waiters[i].Val())
			if text, ok := counters.Val()[i].(string); ok {
				nl.Token = fence.Token(number(text))
			}
		}
		found[i] = nl
	}
	return found
}

// failure is err, unless it says that a key does not exist.
func failure(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// read parses the value and the TTL of a lock's key.
func (nl *nodeLock) read(value string, ttl time.Duration) {
	if len(value) >= ownerLength {
		nl.Locked = true
		nl.owner, nl.Holder = value[:ownerLength], value[ownerLength:]
		nl.TTL = ttl
	}
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// globQuote makes a text match itself in a Redis pattern.
func globQuote(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(text)
}
