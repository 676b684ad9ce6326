// Package leasing defines a source of leases: it grants a resource to one holder for a limited time, with a fencing
// token. Redis nodes are one source (package lock); a database or a coordination service can be another. Users of
// leases, such as the gateway, depend only on this package.
//
// The guarantee of every [Source]: tokens of one resource are unique, and if one acquisition completed before another
// began, its token is lower. A resource has only one holder at a time as long as clocks run at nearly the same speed;
// the fence makes the exception harmless. Package leasingtest tests these rules for each implementation.
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

// Source grants leases. Implementations are safe for concurrent use.
//
// Any process that has a source of the same group can extend and release a
// lease by its [Ref], whichever process acquired it.
//
// The errors of every method are, or wrap, one of these: a [*fence.InvalidError], [ErrHeld], [ErrLost],
// [ErrUnavailable], [ErrClosed], or the context's error, joined with [ErrHeld] if it ended a wait. Any other error of
// an acquisition comes from the [Armer].
type Source interface {
	// TryAcquire takes the lease of a resource if it is free; otherwise the error is a [*HeldError]. After an error
	// nothing stays locked, though a partial acquisition may be released a moment later. If the Armer's error is
	// [fence.ErrUnknown], the fence may have been raised; that only makes older grants stale.
	TryAcquire(ctx context.Context, r Request) (Lease, error)

	// Acquire waits until ctx ends while another holds the resource: for its release or its expiry. Callers in one
	// process are served in the order of their calls.
	Acquire(ctx context.Context, r Request) (Lease, error)

	// Extend gives a lease a new time to live, counted from now, and returns how long it is valid from now on. A
	// lease that is over is never revived: the error is [ErrLost]. It is over when the service has removed it, which
	// may be seconds after its deadline, or with the session of the process that took it; until then nobody else has
	// had the resource, and Extend succeeds. After [ErrUnavailable] the lease is valid until its old deadline, or
	// until now + ttl if that is sooner.
	Extend(ctx context.Context, ref Ref, ttl time.Duration) (time.Duration, error)

	// Release ends a lease. [ErrLost]: it was over already, or another holder has the resource; nothing was changed.
	// Release runs even if ctx has ended. If the Armer is an [Ender], the grant is ended first.
	Release(ctx context.Context, ref Ref) error

	// Inspect says who holds a resource. The answer is for display: it may be outdated. With [ErrUnavailable] the
	// inspection contains what could be learned.
	Inspect(ctx context.Context, resource string) (Inspection, error)

	// Ready reports whether the source can grant leases: nil, or [ErrUnavailable] with the reason.
	Ready(ctx context.Context) error

	// Close aborts waiting callers and frees the source's resources. Leases stay held until they expire. Later calls
	// fail with [ErrClosed]. Closing twice is not an error.
	Close() error
}

// AllSource is a [Source] that grants several leases at once, all or none. A wrapper whose source is not an AllSource
// returns errors.ErrUnsupported.
//
// The leases come in the order of the requests. A resource that is named twice, or an empty list, is a
// [*fence.InvalidError]. Two callers with common resources never deadlock. If the Armer is an [AllArmer], it arms all
// in one call. The [*HeldError] names the resource that is held. After an error nothing stays locked, as with one
// lease.
type AllSource interface {
	Source

	// TryAcquireAll takes the leases if all resources are free.
	TryAcquireAll(ctx context.Context, all []Request) ([]Lease, error)

	// AcquireAll waits until ctx ends while others hold some of them, and renews the leases that it already has.
	AcquireAll(ctx context.Context, all []Request) ([]Lease, error)
}

// Redundant is a [Source] of several servers that grants leases while some of them are unavailable.
type Redundant interface {
	Source
	// Degraded says how many servers take no part, without naming them; "": all take part.
	Degraded(ctx context.Context) string
}

// Surveyor is a [Source] that can inspect many resources in one round, as [Source.Inspect] does for one. A wrapper
// whose source is not a Surveyor returns errors.ErrUnsupported.
type Surveyor interface {
	Source
	// InspectAll answers in the order of the resources. With [ErrUnavailable] the result contains what could be
	// learned.
	InspectAll(ctx context.Context, resources []string) ([]Inspection, error)
}

// Armer raises the fence of a resource to a new token, as the last step of an acquisition. A source that was created
// with an Armer arms every lease before it returns it. See [fence.Arming].
//
// nil: the fence stands at the token with this seal, and no older writer is left. [*fence.NotRaisedError]: nothing
// was raised; the error has the recorded token, and the source retries with a token above it, a bounded number of
// times. Joined with [fence.ErrUnknown]: it may have been raised.
type Armer interface {
	Arm(ctx context.Context, a fence.Arming) error
}

// AllArmer is an [Armer] that arms several resources in one transaction, in the given order: all or none. A
// [*fence.NotRaisedError] names the resource whose token was too low.
type AllArmer interface {
	Armer
	ArmAll(ctx context.Context, all []fence.Arming) error
}

// Ender is an [Armer] that also ends grants, so that writes under a released lease are refused before the next
// acquisition. If a source's Armer is an Ender, each release calls End before it frees the resource. It frees the
// resource whatever End returns, and End has a time limit, because the fence may be unavailable.
//
// nil: the grant has ended. [*fence.StaleError]: a newer one has superseded it. After any other error it may be
// current until the next acquisition.
type Ender interface {
	Armer
	End(ctx context.Context, e fence.Ending) error
}

// Floorer is an [Armer] that knows, for resources without a fence, which tokens it would refuse. A source whose Armer
// is a Floorer issues tokens above the floor, so that a new or long unused name is armed at the first attempt. The
// floor may be outdated; then [*fence.NotRaisedError] has the current one.
type Floorer interface {
	Armer
	Floor(resource string) fence.Token
}

// Recorder is an [Armer] that knows whether it ever raised a fence. A source that finds its servers empty treats them
// as new only if no fence was ever raised. Otherwise they have lost leases that may still be held.
type Recorder interface {
	Armer
	Raised(ctx context.Context) (bool, error)
}

// Request asks for a lease.
type Request struct {
	Resource string
	TTL      time.Duration // how long it lives unless it is extended
	Holder   string        // display name, at most 200 bytes; "": the source's own name

	// SealHash is the SHA-256 of a seal that only the caller has; the [Armer] arms with it. nil: the source creates a
	// seal, and the lease's grant contains it.
	SealHash []byte

	// Repeatable says that the caller, or another process for it, may repeat the request with the same SealHash, look
	// for its lease first and return it. If the acquisition fails once its fence may be raised, a source does not give
	// the lease back then: it ends at its TTL. Without a SealHash it has no effect.
	Repeatable bool
}

// Lease is a resource held until its deadline.
type Lease struct {
	Grant    fence.Grant // what to present with each write: holds a secret, unless the request had a SealHash
	Owner    string      // identifies the acquisition, together with resource and token
	Deadline time.Time   // on the monotonic clock, counted from before the first message, less the drift allowance
}

// Ref names the lease.
func (l Lease) Ref() Ref {
	return Ref{Resource: l.Grant.Resource, Owner: l.Owner, Token: l.Grant.Token}
}

// Ref identifies a lease, so that any process can extend or release it. It contains no seal: it allows ending a
// lease, but not writing under it.
type Ref struct {
	Resource string
	Owner    string // opaque
	Token    fence.Token
}

// Inspection is the state of a resource's lease.
type Inspection struct {
	Resource string
	Locked   bool
	Holder   string        // display name
	Owner    string        // of the holder, for [Source.Release]; "" if the resource is free
	Token    fence.Token   // the highest known; 0: none
	TTL      time.Duration // until the lease ends unless it is extended; -1: never
	Waiters  int           // processes that wait in the queue
	Members  []Member      // the answer of each server; nil if the source has no separate servers
}

// Member is one server's answer about a resource.
type Member struct {
	Name    string
	Locked  bool
	Holder  string
	Token   fence.Token   // as far as this server knows
	TTL     time.Duration // -1: never ends
	Waiters int
	Err     error // nil: it answered
}
