package lock

import (
	"cmp"
	"context"
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

// Status asks all nodes. The group can grant leases while a quorum (more than half) is admitted.
func (l *Locker) Status(ctx context.Context) []NodeStatus {
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
func (l *Locker) Waiters() int { return l.lines.count() }

// Ping reports whether the group can grant leases: nil, or a [*QuorumError] that says which nodes are missing and
// why.
func (l *Locker) Ping(ctx context.Context) error {
	var causes []*NodeError
	for i, st := range l.states(ctx) {
		switch {
		case st.err != nil:
			causes = append(causes, &NodeError{Node: l.nodes[i].name, Err: st.err})
		case !st.admitted:
			l.nodeLost(l.nodes[i])
			causes = append(causes, &NodeError{Node: l.nodes[i].name, Err: quarantined(st)})
		}
	}
	if len(l.nodes)-len(causes) >= l.quorum {
		return nil
	}
	return l.quorumError("ping", l.cfg.KeyPrefix, causes)
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

// Inspect asks all nodes about a resource; each is a member. It is for display: the answer may be outdated. The error
// is a [*fence.InvalidError], or a [*QuorumError] if too few nodes answered to decide whether the resource is locked;
// the inspection then still contains the other nodes' answers.
//
// The resource is locked if one acquisition holds a quorum. Its token is the highest counter, 0 if Redis has no
// record of an acquisition. Each waiter is a Locker, which may have several callers waiting.
func (l *Locker) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	ins, _, err := l.inspect(ctx, resource)
	return ins, err
}

// inspect also returns each node's answer.
func (l *Locker) inspect(ctx context.Context, resource string) (leasing.Inspection, []nodeLock, error) {
	if err := fence.ValidateResource(resource); err != nil {
		return leasing.Inspection{}, nil, err
	}
	all := l.locks(ctx, resource)
	ins, err := l.judged(resource, all)
	return ins, all, err
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

// locks asks every node for its lock of a resource.
func (l *Locker) locks(ctx context.Context, resource string) []nodeLock {
	found := make([]nodeLock, len(l.nodes))
	var asks sync.WaitGroup
	for i, n := range l.nodes {
		asks.Go(func() { found[i] = n.inspect(ctx, resource) })
	}
	asks.Wait()
	return found
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

func (n *node) inspect(ctx context.Context, resource string) nodeLock {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	nl := nodeLock{Member: leasing.Member{Name: n.name}}
	var value *redis.StringCmd
	var ttl *redis.DurationCmd
	var counter *redis.SliceCmd
	var waiters *redis.IntCmd
	_, err := n.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		value = tx.Get(ctx, n.keys.lock(resource))
		ttl = tx.PTTL(ctx, n.keys.lock(resource))
		counter = tx.HMGet(ctx, n.keys.h, counterField(resource), "@base")
		waiters = tx.ZCard(ctx, n.keys.waitPrefix+resource)
		return nil
	})
	if err == redis.Nil { //nolint:errorlint // redis.Nil is returned bare
		err = cmp.Or(ttl.Err(), counter.Err(), waiters.Err()) // no lock; that is the first error, and hides another
	}
	if err == nil && len(counter.Val()) != 2 {
		err = errMalformed
	}
	if err != nil {
		nl.Err = serverError(err)
		return nl
	}
	nl.read(value.Val(), ttl.Val())
	nl.Waiters = int(waiters.Val())
	if text, ok := counter.Val()[0].(string); ok {
		nl.Token = fence.Token(number(text))
	}
	return nl
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
