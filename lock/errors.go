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
	// ErrHeld: another holder has the resource. Nothing was acquired. The error is a
	// [*leasing.HeldError].
	ErrHeld = leasing.ErrHeld
	// ErrNoQuorum: too few nodes answered. Nothing was acquired, extended or
	// confirmed; what a minority granted is given back or expires.
	ErrNoQuorum = errors.New("no quorum of Redis nodes")
	// ErrLost: the lease is over: its deadline passed, or the locks are gone or another's.
	ErrLost = leasing.ErrLost
	// ErrReleased: the lease was released by its holder.
	ErrReleased = errors.New("lease was released")
	// ErrQuarantined: a node is not admitted: it is new, or lost its data or
	// its run, and grants nothing until it is admitted again.
	ErrQuarantined = errors.New("the node is not admitted, so it grants no leases")
	// ErrExhausted: a resource has used up the tokens of this epoch. Every
	// acquisition that finds that raises the epoch, so it is seen only where
	// that fails.
	ErrExhausted = errors.New("tokens of this epoch are used up")
	// ErrClosed: the Locker is closed.
	ErrClosed = leasing.ErrClosed
	// ErrNotRecorded: a TTL that is longer than any in use could not be recorded, so no node
	// may grant it. Shorter leases go on.
	ErrNotRecorded = errors.New("the longest TTL in use could not be recorded")
	// ErrNodeTimeout: a node did not answer within the node timeout.
	ErrNodeTimeout = errors.New("no answer within the node timeout")
	// ErrCluster: the node is part of a Redis Cluster.
	ErrCluster = errors.New("redis cluster is not supported: the counters and a lock lie in different slots, so no script can change both; use independent nodes")

	// ErrOldRedis: the node is a Redis before version 7.
	ErrOldRedis = errors.New("redis before version 7 is not supported: its scripts outlive a restart, so a loss of data would go unnoticed; use Redis 7 or newer, or Valkey")

	// ErrMode: the node is marked for the other mode than this Locker's: best effort, or
	// strict. It takes [Config.BestEffort], or [Locker.Mark].
	ErrMode = errors.New("the node is marked for another mode")

	// ErrEvicts: the node may evict locks and counters before their time.
	ErrEvicts = errors.New("redis that evicts keys is not supported: locks and counters would vanish before their time; set maxmemory-policy noeviction")

	errSentinel = errors.New("this is a Redis Sentinel, not a server: give the address of the server")
)

// refusedError is the [*leasing.HeldError] of one attempt. Where several attempts
// collided, nobody is known to hold the resource.
type refusedError struct {
	leasing.HeldError

	floor fence.Token // highest counter seen: the floor of the next attempt
}

// Unwrap shows what callers know.
func (e *refusedError) Unwrap() error { return &e.HeldError }

// cutShort is the context's error that ended an acquisition while the nodes were asked.
type cutShort struct{ error }

func (e cutShort) Unwrap() error { return e.error }

// NodeError says why one node did not take part.
type NodeError struct {
	Node string
	Err  error
}

func (e *NodeError) Error() string { return e.Node + ": " + e.Err.Error() }

// Unwrap is the cause.
func (e *NodeError) Unwrap() error { return e.Err }

// QuorumError says which nodes were missing from a quorum, and why.
type QuorumError struct {
	Operation string // "acquire", "confirm", "extend", "release"
	Resource  string
	Nodes     int          // how many there are
	Quorum    int          // how many are needed
	Causes    []*NodeError // one for each node that did not take part

	// NeedsAdmission: so many of them are not admitted that the others alone are no
	// quorum, and this Locker, which has no Armer, admits none by itself. It takes
	// [Locker.Init] where the group is new, else [Locker.Readmit].
	NeedsAdmission bool
}

// quorumError says why an operation found no quorum.
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
		text += "; admit the nodes of a new group with Locker.Init or fencegate serve --init, and nodes that lost their data with Locker.Readmit or fencegate nodes admit"
	}
	return text
}

// Is matches [ErrNoQuorum].
func (e *QuorumError) Is(target error) bool { return target == ErrNoQuorum }

// Unwrap gives each node's cause.
func (e *QuorumError) Unwrap() []error {
	errs := make([]error, len(e.Causes))
	for i, c := range e.Causes {
		errs[i] = c
	}
	return errs
}

// mayReturn reports whether the quorum may be there later without anybody mending
// anything but what is down: enough of the nodes are neither of a kind that is not
// supported nor refuse the login, nor wait for a person to admit them.
func (e *QuorumError) mayReturn() bool {
	broken := 0
	for _, c := range e.Causes {
		if errors.Is(c, ErrCluster) || errors.Is(c, errSentinel) || errors.Is(c, ErrOldRedis) || errors.Is(c, ErrMode) || errors.Is(c, ErrEvicts) || refusesLogin(c) {
			broken++
		}
	}
	return !e.NeedsAdmission && e.Nodes-broken >= e.Quorum
}

// Retryable reports whether the same call may succeed later without anybody
// mending anything but Redis itself: the resource was held, or a quorum was
// missing. It is not where the nodes have to be admitted first by somebody
// ([QuorumError.NeedsAdmission]). A lost lease is not retryable: acquire again,
// and start again from what the newer holder wrote.
func Retryable(err error) bool {
	if missing, ok := errors.AsType[*QuorumError](err); ok && missing.NeedsAdmission {
		return false
	}
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrNoQuorum)
}
