package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// QuarantineError says that a quarantine runs, and for how long.
type QuarantineError struct {
	Node string
	Left time.Duration
}

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("%s is in quarantine for another %v, until every lease it may have granted is over", e.Node, e.Left)
}

func (e *QuarantineError) Is(target error) bool { return target == ErrQuarantined }

// Why a node takes no part.
var (
	// ErrQuarantined: a node is not admitted: it is new, or lost its data or was restarted. It grants nothing until
	// it is admitted again.
	ErrQuarantined = errors.New("the node is not admitted, so it grants no leases")
	// ErrNodeTimeout: a node did not answer within the node timeout.
	ErrNodeTimeout = errors.New("no answer within the node timeout")
	// ErrCluster: the node is part of a Redis Cluster.
	ErrCluster = errors.New("redis cluster is not supported: the counters and a lock lie in different slots, so no script can change both; use independent nodes")

	// ErrOldRedis: the node is a Redis before version 7.
	ErrOldRedis = errors.New("redis before version 7 is not supported: its scripts outlive a restart, so a loss of data would go unnoticed; use Redis 7 or newer, or Valkey")

	// ErrMode: the node is marked for the other mode, best effort or strict, than this Locker's. Change
	// Config.BestEffort, or the mode of the nodes.
	ErrMode = errors.New("the node is marked for another mode")

	// ErrEvicts: the node may evict locks and counters before they expire.
	ErrEvicts = errors.New("redis that evicts keys is not supported: locks and counters would vanish before their time; set maxmemory-policy noeviction")

	// ErrNoPassword: the node requires a password, and its configuration has none.
	ErrNoPassword = errors.New("the node needs a password: give it with --redis-password-file or FENCEGATE_REDIS_PASSWORD (in Go: Node.Credentials)")

	errSentinel = errors.New("this is a Redis Sentinel, not a server: give the address of the server")
)

// NodeError says why one node did not take part.
type NodeError struct {
	Node string
	Err  error
}

func (e *NodeError) Error() string { return e.Node + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *NodeError) Unwrap() error { return e.Err }

// NeedsOperator reports whether a node takes no part, by this error, until somebody changes its configuration or this
// process's.
func NeedsOperator(err error) bool {
	return errors.Is(err, ErrCluster) || errors.Is(err, errSentinel) || errors.Is(err, ErrOldRedis) || errors.Is(err, ErrMode) ||
		errors.Is(err, ErrEvicts) || errors.Is(err, ErrNoPassword) || refusesLogin(err)
}

// IsOutOfMemory reports whether the server refused a command because it has no memory for it.
func IsOutOfMemory(err error) bool { return redis.HasErrorPrefix(err, "OOM") }
