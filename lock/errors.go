package lock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Sentinels for errors.Is. Malformed input is a [*fence.InvalidError].
var (
	// ErrHeld: another holder has the resource. Nothing was acquired. The error is a [*leasing.HeldError].
	ErrHeld = leasing.ErrHeld
	// ErrNoQuorum: too few nodes answered. Nothing was acquired, extended or confirmed; locks on a minority are given
	// back or expire.
	ErrNoQuorum = errors.New("no quorum of Redis nodes")
	// ErrLost: the lease is over: its deadline has passed, or its locks are gone or another holder's.
	ErrLost = leasing.ErrLost
	// ErrReleased: the lease was released by its holder.
	ErrReleased = errors.New("lease was released")
	// ErrQuarantined: a node is not admitted: it is new, or lost its data or was restarted. It grants nothing until
	// it is admitted again.
	ErrQuarantined = errors.New("the node is not admitted, so it grants no leases")
	// ErrExhausted: a resource has used up the tokens of this epoch. The acquisition that finds this raises the
	// epoch, so the error is seen only if that fails.
	ErrExhausted = errors.New("tokens of this epoch are used up")
	// ErrClosed: the Locker is closed.
	ErrClosed = leasing.ErrClosed
	// ErrNodeTimeout: a node did not answer within the node timeout.
	ErrNodeTimeout = errors.New("no answer within the node timeout")
	// ErrCluster: the node is part of a Redis Cluster.
	ErrCluster = errors.New("redis cluster is not supported: the counters and a lock lie in different slots, so no script can change both; use independent nodes")

	// ErrOldRedis: the node is a Redis before version 7.
	ErrOldRedis = errors.New("redis before version 7 is not supported: its scripts outlive a restart, so a loss of data would go unnoticed; use Redis 7 or newer, or Valkey")

	// ErrMode: the node is marked for the other mode, best effort or strict, than this Locker's. Change
	// [Config.BestEffort] or use [Locker.Mark].
	ErrMode = errors.New("the node is marked for another mode")

	// ErrEvicts: the node may evict locks and counters before they expire.
	ErrEvicts = errors.New("redis that evicts keys is not supported: locks and counters would vanish before their time; set maxmemory-policy noeviction")

	// ErrNoPassword: the node requires a password, and its [Node] has none.
	ErrNoPassword = errors.New("the node needs a password: give it with --redis-password-file or FENCEGATE_REDIS_PASSWORD (in Go: Node.Credentials)")

	errSentinel = errors.New("this is a Redis Sentinel, not a server: give the address of the server")
)

// refusedError is the [*leasing.HeldError] of one attempt. If several attempts collided, no holder is known.
type refusedError struct {
	leasing.HeldError

	floor fence.Token // highest counter seen: the floor of the next attempt
}

// Unwrap returns the public error.
func (e *refusedError) Unwrap() error { return &e.HeldError }

// cutShort is the context's error of an acquisition that ended while the nodes were asked.
type cutShort struct{ error }

func (e cutShort) Unwrap() error { return e.error }

// NodeError says why one node did not take part.
type NodeError struct {
	Node string
	Err  error
}

func (e *NodeError) Error() string { return e.Node + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *NodeError) Unwrap() error { return e.Err }

// QuorumError says which nodes were missing from a quorum, and why.
type QuorumError struct {
	Operation string // "acquire", "confirm", "extend", "release"
	Resource  string
	Nodes     int          // size of the group
	Quorum    int          // how many are needed
	Causes    []*NodeError // one for each node that did not take part

	// NeedsAdmission: so many nodes are not admitted that the others are no quorum, and this Locker has no Armer, so
	// it does not admit them automatically. Call [Locker.Init] if the group is new, with [Above] if it has no database and
	// lost a majority, otherwise [Locker.Admit].
	NeedsAdmission bool
}

// quorumError builds the error of an operation without a quorum.
func (l *Locker) quorumError(operation, resource string, causes []*NodeError) *QuorumError {
	out := 0
	for _, c := range causes {
		if errors.Is(c, ErrQuarantined) {
			out++
		}
	}
	return &QuorumError{
		Operation: operation, Resource: resource, Nodes: len(l.nodes), Quorum: l.quorum, Causes: causes,
		NeedsAdmission: out > len(l.nodes)-l.quorum && !l.admitsByItself(),
	}
}

func (e *QuorumError) Error() string {
	causes := make([]string, len(e.Causes))
	for i, c := range e.Causes {
		causes[i] = c.Error()
	}
	text := fmt.Sprintf("%s %q: no quorum: %d of %d Redis nodes did not take part and %d are needed (%s)",
		e.Operation, e.Resource, len(e.Causes), e.Nodes, e.Quorum, strings.Join(causes, "; "))
	if e.NeedsAdmission {
		text += "; admit the nodes of a new group with Locker.Init or fencegate nodes init, nodes that lost their data with Locker.Admit or fencegate nodes admit, " +
			"and a group without PostgreSQL that lost a majority with Locker.Init and Above, or fencegate nodes init --above TOKEN"
	}
	return text
}

// Is matches [ErrNoQuorum].
func (e *QuorumError) Is(target error) bool { return target == ErrNoQuorum }

// Unwrap returns each node's cause.
func (e *QuorumError) Unwrap() []error {
	errs := make([]error, len(e.Causes))
	for i, c := range e.Causes {
		errs[i] = c
	}
	return errs
}

// mayReturn reports whether the quorum may return without an operator, once failed nodes are up again: enough nodes
// are supported, accept the login, and do not wait for an operator to admit them.
func (e *QuorumError) mayReturn() bool {
	broken := 0
	for _, c := range e.Causes {
		if errors.Is(c, ErrCluster) || errors.Is(c, errSentinel) || errors.Is(c, ErrOldRedis) || errors.Is(c, ErrMode) || errors.Is(c, ErrEvicts) || errors.Is(c, ErrNoPassword) || refusesLogin(c) {
			broken++
		}
	}
	return !e.NeedsAdmission && e.Nodes-broken >= e.Quorum
}

// Retryable reports whether the same call may succeed later without anything but Redis being repaired: the resource
// was held, or a quorum was missing. It is false if an operator has to admit the nodes first
// ([QuorumError.NeedsAdmission]). A lost lease is not retryable: acquire again, and start from what the newer holder
// wrote.
func Retryable(err error) bool {
	if missing, ok := errors.AsType[*QuorumError](err); ok && missing.NeedsAdmission {
		return false
	}
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrNoQuorum) || isUnkeyed(err)
}
