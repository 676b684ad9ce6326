package node

import (
	"sync/atomic"
	"time"
)

// Kind is the kind of an op.
type Kind uint8

const (
	OpAcquire Kind = iota // phase 1
	OpConfirm             // phase 2
	OpExtend
	OpRelease
	opKinds // number of kinds whose script is bound to an incarnation
)

// The kinds of ops of waiters. No lock depends on them.
const (
	OpLook  Kind = scriptKinds + iota // joins the queue of a resource, or checks the place in it
	OpLeave                           // leaves the queue
	OpHas                             // whether the node has a lock of the resource
)

// Op is one call on one node.
type Op struct {
	Kind     Kind
	Node     int
	Resource string
	Wakes    bool // release: this node may have a queue of waiters
	Ask
	State    atomic.Uint32
	Repeated bool // release: its link ended or it was refused, and it is sent again
	Sink     sink
}

// Ask has an op's arguments, the same for each node.
type Ask struct {
	Owner   string // look, leave: the waiter
	Holder  string
	TTL     int64     // ms; look: after how long without one the first of the queue is skipped
	N       int64     // acquire: floor; confirm: token
	Expires time.Time // not sent after that
}

// sink receives the reply to an op: exactly one for each submitted op. It must not block.
type sink interface{ Deliver(r Reply) }

// States of an op. The goroutine that changes it from queued decides.
const (
	OpQueued uint32 = iota
	opSent
	opAbandoned
)

// Abandon takes an op back. It reports false if the op was already sent: then it may take effect at any time.
func (o *Op) Abandon() bool { return o.State.CompareAndSwap(OpQueued, opAbandoned) }

// Codes of a script's reply, other than a positive number.
const (
	CodeRefused   = 0  // acquire: held; confirm, extend: lost; release: not ours; has: no lock; look: always
	codeUnknown   = -1 // the node is not admitted in this incarnation
	CodeExhausted = -2
	CodeMaxTTL    = -3
)

// Reply is a node's answer to an op.
type Reply struct {
	Node   int
	N      int64 // the code, or the counter of a grant
	PTTL   int64 // refused acquire, look: ms; else the node's maximum for codeMaxTTL
	Floor  int64 // refused acquire: counter; look: how many wait before this one
	Holder string
	Err    error // no answer: whether the op took effect is unknown, unless sent is false
	Sent   bool
}
