// Package leasing says what a source of leases is: who holds a resource for a
// time, and with which fencing token. Redis nodes are one (package lock); a
// database or a coordination service can be another. A user of leases, such
// as the gateway, knows this package only.
//
// The guarantee of every [Source]: tokens of one resource are unique, and if one
// acquisition was complete before another began, its token is lower. That only
// one holder has a resource at a time is true as long as clocks run at nearly
// the same speed; the fence is why the exception is not fatal. Package
// leasingtest has the rules as tests, for each implementation to pass.
//
//	lease, err := source.Acquire(ctx, leasing.Request{Resource: "orders/1001", TTL: 30 * time.Second})
//	if err != nil {
//		return err // leasing.ErrHeld, leasing.ErrUnavailable, …
//	}
//	defer source.Release(ctx, lease.Ref())
//	write(lease.Grant) // until lease.Deadline
package leasing

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Source gives leases. Implementations are safe for concurrent use.
//
// Any process that has a source of the same group can extend and release a
// lease by its [Ref], whichever process acquired it.
//
// The errors of every method are one of these, or wrap one: a
// [*fence.InvalidError], [ErrHeld], [ErrLost], [ErrUnavailable], [ErrClosed],
// the context's own, joined with [ErrHeld] where it ended a wait. Any other
// error of an acquisition is that of the [Armer].
type Source interface {
	// TryAcquire takes the lease of a resource if nobody holds it; else the error is
	// a [*HeldError]. After an error nothing stays locked, though what was taken
	// half-way may be given back a moment later. The fence may have been raised where
	// the Armer's error is [fence.ErrUnknown]; that only makes older grants stale.
	TryAcquire(ctx context.Context, r Request) (Lease, error)

	// Acquire waits while another holds the resource, until ctx ends: for its release
	// or its end, whichever comes first. Callers in one process are served in the
	// order in which they asked.
	Acquire(ctx context.Context, r Request) (Lease, error)

	// Extend gives a lease a new time to live, counted from now, and returns how long
	// it is good from now on. A lease that is over is never revived: [ErrLost]. After
	// [ErrUnavailable] it is good until its old deadline, or until now + ttl where that
	// is sooner.
	Extend(ctx context.Context, ref Ref, ttl time.Duration) (time.Duration, error)

	// Release ends a lease. [ErrLost]: it was over already, or is another's; then it
	// changes nothing. It is carried out also when ctx has ended. Where the Armer is an
	// [Ender], the grant is ended first.
	Release(ctx context.Context, ref Ref) error

	// Inspect says who holds a resource, for people: it may have changed meanwhile.
	// With [ErrUnavailable] it holds what could be learned all the same.
	Inspect(ctx context.Context, resource string) (Inspection, error)

	// Ready reports whether leases can be had: nil, or [ErrUnavailable] with the reason.
	Ready(ctx context.Context) error

	// Close gives up waiting callers and frees what the source needed; leases that are
	// held stay held until they end. Later calls fail with [ErrClosed]; closing twice
	// is no error.
	Close() error
}

// AllSource is a [Source] that gives several leases at once, all or none. It is an
// option: errors.ErrUnsupported says that a source which is wrapped has none.
//
// The leases come in the order of the requests; a resource that is named twice, and
// no request at all, are a [*fence.InvalidError]. Two callers with common resources
// never wait for each other. Where the Armer is an [AllArmer], it arms all in one
// call. The [*HeldError] names the resource that stood in the way. After an error
// nothing stays locked, as with one lease.
type AllSource interface {
	Source

	// TryAcquireAll takes the leases if nobody holds any of them.
	TryAcquireAll(ctx context.Context, all []Request) ([]Lease, error)

	// AcquireAll waits while others hold some of them, until ctx ends, and renews
	// meanwhile what it has.
	AcquireAll(ctx context.Context, all []Request) ([]Lease, error)
}

// Redundant is a [Source] of several servers that gives leases while some of them are away.
type Redundant interface {
	Source
	// Degraded says how many take no part, without naming any; "": all do.
	Degraded(ctx context.Context) string
}

// Surveyor is a [Source] that can say who holds many resources in one round, as
// [Source.Inspect] does of one. errors.ErrUnsupported says that a source which is wrapped
// can not.
type Surveyor interface {
	Source
	// InspectAll answers in the order of the resources. With [ErrUnavailable] it holds what
	// could be learned all the same; who holds the others is not known.
	InspectAll(ctx context.Context, resources []string) ([]Inspection, error)
}

// Armer raises the fence of a resource to a new token, as the last step of an
// acquisition; a source that was made with one arms every lease before it gives
// it. See [fence.Arming].
//
// nil: the fence stands at the token with this seal, and no older writer is left.
// A [*fence.NotRaisedError] says that nothing was raised and where the fence
// stands: the source takes a token above that, a bounded number of times.
// Joined with [fence.ErrUnknown]: it may have been raised.
type Armer interface {
	Arm(ctx context.Context, a fence.Arming) error
}

// AllArmer is an [Armer] that arms several resources in one transaction, in the
// given order: all or none. A [*fence.NotRaisedError] names the resource that
// stood in the way.
type AllArmer interface {
	Armer
	ArmAll(ctx context.Context, all []fence.Arming) error
}

// Ender is an [Armer] that also ends grants, so that the writes of a lease that was
// released are refused before anybody acquires the resource again. A source whose
// Armer is one calls End in each release, before it frees the resource, and frees it
// whatever End says: within a bound of its own, for the fence may be away.
//
// nil: the grant is over. A [*fence.StaleError]: a newer one has superseded it. After
// any other error it may still be current, until the next acquisition.
type Ender interface {
	Armer
	End(ctx context.Context, e fence.Ending) error
}

// Floorer is an [Armer] that knows of resources without a fence which tokens it
// would refuse. A source whose Armer is one begins above the floor, so that a name
// that is new, or was not used for long, is armed once. What it knows may be old: then
// [*fence.NotRaisedError] says where the floor is.
type Floorer interface {
	Armer
	Floor(resource string) fence.Token
}

// Recorder is an [Armer] that knows whether it ever raised a fence. A source that finds its
// servers empty takes them for new only where it never did: else they have forgotten
// leases that may still be held.
type Recorder interface {
	Armer
	Raised(ctx context.Context) (bool, error)
}

// Request asks for a lease.
type Request struct {
	Resource string
	TTL      time.Duration // how long it lives unless it is extended
	Holder   string        // for people, at most 200 bytes; "" for the source's own name

	// SealHash is what the [Armer] arms with: the SHA-256 of a seal that the caller has
	// and the source never sees. nil: the source makes a seal, and the lease's grant
	// holds it.
	SealHash []byte

	// NonceHash is handed to the [Armer] with the token: see [fence.Arming]. It is good for
	// the acquisition of one resource, by a source with an Armer; others refuse it with a
	// [*fence.InvalidError]. The error is a [*fence.SpentError] where the nonce is spent.
	NonceHash []byte
}

// Lease is a resource held until its deadline.
type Lease struct {
	Grant    fence.Grant // what to present with each write: holds a secret, unless the request had a SealHash
	Owner    string      // names the acquisition, together with resource and token
	Deadline time.Time   // on this process's monotonic clock; counted from before the first message, drift allowed for
}

// Ref names the lease.
func (l Lease) Ref() Ref {
	return Ref{Resource: l.Grant.Resource, Owner: l.Owner, Token: l.Grant.Token}
}

// Ref names a lease, so that any process can extend or release it. It holds no
// seal: it gives the power to end a lease, not to write under it.
type Ref struct {
	Resource string
	Owner    string // opaque
	Token    fence.Token
}

// Inspection is who holds a resource.
type Inspection struct {
	Resource string
	Locked   bool
	Holder   string        // its name for people
	Owner    string        // of the holder, for [Source.Release]; "" where nobody holds it
	Token    fence.Token   // the highest that is known; 0: none
	TTL      time.Duration // until the lease ends unless it is extended; -1: never
	Waiters  int           // processes that wait in a queue
	Members  []Member      // what each server of the source says; nil where there are none to tell apart
}

// Member is what one server of a source says of a resource.
type Member struct {
	Name    string
	Locked  bool
	Holder  string
	Token   fence.Token   // as far as this server knows
	TTL     time.Duration // -1: never ends
	Waiters int
	Err     error // nil: it answered
}
