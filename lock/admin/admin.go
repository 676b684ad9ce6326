// Package admin is what an operator of a group of Redis nodes needs: the first start, the admission of nodes that lost
// their data, their state, their mode and their longest TTL, and a forced release.
//
// The guarantee: whatever is done here, and in whatever order, no node grants a lease before every lease that it may have
// granted earlier is over, and tokens stay unique and rise.
//
//	a, err := admin.New(lock.Config{Nodes: nodes, KeyPrefix: pgfence.KeyPrefix(pool), Armer: fence, Epochs: fence})
//	if err != nil {
//		return err
//	}
//	defer a.Close()
//	for _, st := range a.Status(ctx) {
//		fmt.Println(st.Name, st.Admitted, st.Quarantine, st.Err)
//	}
//
// An application that has a [lock.Locker] uses [Of], which needs no connections of its own.
package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// NodeStatus is a node's health, for display and readiness checks.
type NodeStatus = admission.NodeStatus

// Leak is a lock that never expires. fencegate leaves none, but a PERSIST, a restore or a foreign script can.
type Leak = node.Leak

// Admin administers the nodes of a group. It is safe for concurrent use. Its methods fail with [leasing.ErrUnavailable]
// as long as the prefix of the keys is not known.
type Admin struct {
	locker *lock.Locker
	group  *admission.Group
}

// New creates an Admin with connections of its own. Close it when done. The error is a [*fence.InvalidError].
func New(cfg lock.Config) (*Admin, error) {
	l, err := lock.New(cfg)
	if err != nil {
		return nil, err
	}
	return Of(l), nil
}

// Of returns an Admin that uses the connections of a Locker.
func Of(l *lock.Locker) *Admin { return &Admin{l, admission.GroupOf(l)} }

// Close closes the Locker, of [Of] as well.
func (a *Admin) Close() error { return a.locker.Close() }

// Init is the first start of a group: it admits the nodes at once if they are proven empty. It accepts nodes that are
// admitted already, so each process may call it at each start, also concurrently.
//
// The proof: all nodes answer; none of them has a counter, a base or a lock; no lease was taken on any since its
// server was started; the Armer has never raised a fence; and nothing changed in between.
// A group in use is not empty: a node of it that is empty has lost data, and Init leaves it to [Admin.Admit] with
// its quarantine, which starts automatically with an Armer. Init then succeeds if a quorum is admitted, and otherwise
// fails with a [*lock.QuorumError].
//
// Without an Armer Init cannot tell a first start from a restart of all nodes without their data: then call it
// only once in the life of a group. A group without a database that lost a majority goes on by [Admin.InitAbove].
//
// At the first start the nodes get Config.MaxTTL as the group's longest TTL. Later a longer Config.MaxTTL than the
// group's is a [*fence.InvalidError]; see [Admin.SetMaxTTL].
func (a *Admin) Init(ctx context.Context) error { return a.group.Init(ctx) }

// InitAbove goes on with a group without Config.Epochs and Config.Armer, after the loss of so many nodes that the others
// cannot tell which epochs were used. token replaces that knowledge: it must be no lower than any token issued, and all
// later tokens are higher. Run one InitAbove at a time.
//
// It admits the lost nodes after a quarantine of the group's longest TTL, as the remaining nodes keep it, else of
// Config.MaxTTL. If ctx ends, the next call continues. The error is a [*fence.InvalidError], and nothing was changed, if
// token is not higher than the tokens on the nodes, if a quorum is admitted, or if the epoch is kept elsewhere. A quorum
// must answer; nodes that do not are left to [Admin.Admit], and so are nodes that are lost again in the process, if a
// quorum is left. Otherwise none is admitted.
func (a *Admin) InitAbove(ctx context.Context, token fence.Token) error {
	return a.group.InitAbove(ctx, token)
}

// Admit admits a node that lost its data or was restarted. It returns once the node is admitted, after its quarantine,
// or when ctx ends; the next Admit of this process then continues. An admission that another process began is left to
// that process until at least ten seconds after its quarantine, which this one may shorten.
//
// It needs an EpochStore, or an Armer, which guarantees rising tokens by itself, or a quorum of other admitted nodes,
// which then keep the epoch. Without them a group goes on by [Admin.InitAbove].
func (a *Admin) Admit(ctx context.Context, name string) error { return a.group.Admit(ctx, name) }

// Status asks all nodes. While the prefix of the keys is not known it returns none. The group can grant leases while a
// quorum (more than half) is admitted.
func (a *Admin) Status(ctx context.Context) []NodeStatus { return a.group.Status(ctx) }

// QuarantineLeft is the time until enough nodes are out of quarantine for a quorum. 0: there is a quorum, or the time is
// unknown.
func (a *Admin) QuarantineLeft(ctx context.Context) time.Duration { return a.group.QuarantineLeft(ctx) }

// SetMaxTTL changes the longest TTL that the group's nodes grant, whatever Config.MaxTTL is. All nodes have to be
// admitted. A longer TTL is granted once every node, and every process that looks after the nodes, knows of it: after
// 5 s. A shorter one is in force at once; SetMaxTTL then waits until every longer lease has ended, after which
// quarantines are shorter too. After an error, also of ctx, no quarantine is too short for a lease, and the nodes may
// grant either TTL: call it again.
func (a *Admin) SetMaxTTL(ctx context.Context, ttl time.Duration) error {
	return a.group.SetMaxTTL(ctx, ttl)
}

// Mark marks the nodes of a group for best effort, or as strict. Nodes that were marked for the other mode grant
// nothing from then on, until Lockers of the new mode admit them: at once for best effort, otherwise after a
// quarantine, since a resource may have two holders until then. Current leases stay valid until their deadline, and
// are not extended before. The error lists nodes that could not be marked: call Mark again once they are available.
func (a *Admin) Mark(ctx context.Context, bestEffort bool) error {
	return a.group.Mark(ctx, bestEffort)
}

// Sweep deletes the counters of resources on all nodes and returns how many. They use about 100 bytes for each
// resource that was ever used. A Locker sweeps by itself when it finds a node with more than 100,000 of them.
//
// It raises every node's base to the highest counter and deletes the counters that are not above it, page by page, so
// that the nodes keep answering. Tokens stay unique and rising: those of all resources are higher from then on, so a
// resource's tokens jump. An acquisition in progress may find its token overtaken, and is retried. If the highest
// counter is in the upper half of its epoch, Sweep starts a new epoch: set Config.Epochs as the group's Lockers do.
//
// A counter in a later epoch than the nodes' stays: the resource's fence was there, perhaps because a writer made up a
// token, and the epochs up to it would be lost to all resources. If a node has more than 50,000 of them, Sweep starts a
// new epoch; those more than 1024 epochs above the nodes' do not count.
//
// The error names the nodes that could not be swept.
func (a *Admin) Sweep(ctx context.Context) (int, error) { return a.group.Sweep(ctx) }

// Leaks scans all nodes for locks without a TTL. It makes one pass over each node's keys, in pages, and changes
// nothing. The error joins a [*lock.NodeError] for each node that could not be scanned; the other nodes' leaks are
// returned anyway.
func (a *Admin) Leaks(ctx context.Context) ([]Leak, error) { return a.group.Leaks(ctx) }

// ForceRelease takes a resource from its holder. With an Armer it then acquires the resource once, which raises the fence
// past the holder, so the holder's writes are refused, and returns that token. Without one nothing stops a holder that
// still runs, and the token is 0.
//
// The errors are those of [lock.Locker.Inspect], [lock.Locker.Release] and [lock.Locker.TryAcquire]. With [lock.ErrHeld]
// another has acquired the resource in between, which fences the old holder off as well.
func (a *Admin) ForceRelease(ctx context.Context, resource string) (fence.Token, error) {
	owners, err := a.group.Owners(ctx, resource)
	if err != nil {
		return 0, err
	}
	for _, owner := range owners {
		err := a.locker.Release(ctx, leasing.Ref{Resource: resource, Owner: owner})
		if err != nil && !errors.Is(err, lock.ErrLost) { // it may be on a minority, or have ended
			return 0, err
		}
	}
	if !a.group.Arms() {
		return 0, nil
	}
	lease, err := a.locker.TryAcquire(ctx, resource, lock.WithHolder("forced release"))
	if err != nil {
		return 0, fmt.Errorf("the lock of %q was freed, but the fence was not raised: its holder may still write: %w", resource, err)
	}
	lease.ReleaseAsync()
	return lease.Ref().Token, nil
}
