package lock

import (
	"sync/atomic"
	"time"
)

// opKind is the kind of an op.
type opKind uint8

const (
	opAcquire opKind = iota // phase 1
	opConfirm               // phase 2
	opExtend
	opRelease
	opKinds // number of kinds whose script is bound to an incarnation
)

// The kinds of ops of waiters. No lock depends on them.
const (
	opLook  opKind = scriptKinds + iota // joins the queue of a resource, or checks the place in it
	opLeave                             // leaves the queue
	opHas                               // whether the node has a lock of the resource
)

// op is one call on one node.
type op struct {
	kind     opKind
	node     int
	resource string
	wakes    bool // release: this node may have a queue of waiters
	ask
	state    atomic.Uint32
	repeated bool // release: its link ended or it was refused, and it is sent again
	sink     sink
}

// ask has an op's arguments, the same for each node.
type ask struct {
	owner   string // look, leave: the waiter
	holder  string
	ttl     int64     // ms; look: after how long without one the first of the queue is skipped
	n       int64     // acquire: floor; confirm: token
	expires time.Time // not sent after that
}

// sink receives the reply to an op: exactly one for each submitted op. It must not block.
type sink interface{ deliver(r reply) }

// States of an op. The goroutine that changes it from queued decides.
const (
	opQueued uint32 = iota
	opSent
	opAbandoned
)

// abandon takes an op back. It reports false if the op was already sent: then it may take effect at any time.
func (o *op) abandon() bool { return o.state.CompareAndSwap(opQueued, opAbandoned) }

// Codes of a script's reply, other than a positive number.
const (
	codeRefused   = 0  // acquire: held; confirm, extend: lost; release: not ours; has: no lock; look: always
	codeUnknown   = -1 // the node is not admitted in this incarnation
	codeExhausted = -2
	codeMaxTTL    = -3
)

// reply is a node's answer to an op.
type reply struct {
	node   int
	n      int64 // the code, or the counter of a grant
	pttl   int64 // refused acquire, look: ms; else the node's maximum for codeMaxTTL
	floor  int64 // refused acquire: counter; look: how many wait before this one
	holder string
	err    error // no answer: whether the op took effect is unknown, unless sent is false
	sent   bool
}
