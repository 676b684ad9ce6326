package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// Sentinels for errors.Is. Malformed input is a [*fence.InvalidError].
var (
	// ErrHeld: another holder has the resource. Nothing was acquired. The error is a [*leasing.HeldError].
	ErrHeld = leasing.ErrHeld
	// ErrNoQuorum: too few nodes answered. Nothing was acquired, extended or confirmed; locks on a minority are given
	// back or expire. The error is a [*QuorumError].
	ErrNoQuorum = admission.ErrNoQuorum
	// ErrLost: the lease is over: its deadline has passed, or its locks are gone or another holder's.
	ErrLost = leasing.ErrLost
	// ErrReleased: the lease was released by its holder.
	ErrReleased = errors.New("lease was released")
	// ErrExhausted: a resource has used up the tokens of this epoch. The acquisition that finds this raises the
	// epoch, so the error is seen only if that fails.
	ErrExhausted = errors.New("tokens of this epoch are used up")
	// ErrClosed: the Locker is closed.
	ErrClosed = leasing.ErrClosed
)

// Why a node takes no part, in a [*NodeError].
var (
	// ErrQuarantined: a node is not admitted: it is new, or lost its data or was restarted. It grants nothing until
	// it is admitted again.
	ErrQuarantined = node.ErrQuarantined
	// ErrNodeTimeout: a node did not answer within the node timeout.
	ErrNodeTimeout = node.ErrNodeTimeout
	// ErrCluster: the node is part of a Redis Cluster.
	ErrCluster = node.ErrCluster
	// ErrOldRedis: the node is a Redis before version 7.
	ErrOldRedis = node.ErrOldRedis
	// ErrMode: the node is marked for the other mode, best effort or strict, than this Locker's. Change
	// [Config.BestEffort], or the mode of the nodes with package admin.
	ErrMode = node.ErrMode
	// ErrEvicts: the node may evict locks and counters before they expire.
	ErrEvicts = node.ErrEvicts
	// ErrNoPassword: the node requires a password, and its [Node] has none.
	ErrNoPassword = node.ErrNoPassword
)

// NodeError says why one node did not take part.
type NodeError = node.NodeError

// QuorumError says which nodes were missing from a quorum, and why.
type QuorumError = admission.QuorumError

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

// Retryable reports whether the same call may succeed later without anything but Redis being repaired: the resource
// was held, or a quorum was missing. It is false if an operator has to admit the nodes first
// ([QuorumError.NeedsAdmission]). A lost lease is not retryable: acquire again, and start from what the newer holder
// wrote.
func Retryable(err error) bool {
	if missing, ok := errors.AsType[*admission.QuorumError](err); ok && missing.NeedsAdmission {
		return false
	}
	return errors.Is(err, ErrHeld) || errors.Is(err, admission.ErrNoQuorum) || admission.IsUnkeyed(err)
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
