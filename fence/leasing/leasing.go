// Package leasing defines a source of leases: it grants a resource to one holder for a limited time, with a fencing
// token. Redis nodes are one source (package lock); a database or a coordination service can be another. Users of
// leases, such as the gateway, depend only on this package.
//
// The guarantee of every [Source]: tokens of one resource are unique, and if one acquisition completed before another
// began, its token is lower. A resource has only one holder at a time as long as clocks run at nearly the same speed;
// the fence makes the exception harmless. Package leasingtest tests these rules for each implementation.
//
//	lease, err := leasing.One(source.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "orders/1001", TTL: 30 * time.Second}))
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
	"github.com/fencegate/fencegate/fence/clock"
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
	// Acquire takes the leases of all requests, or none, and returns them in the requests' order. A resource that is
	// named twice, or no request, is a [*fence.InvalidError]. If another holds a resource, Acquire waits as wait says:
	// for its release or its expiry. Callers in one process are served in the order of their calls. While it waits, it
	// renews the leases that it already has. Two callers with common resources never deadlock.
	//
	// The Armer arms all leases in one call. After an error nothing stays locked, though a partial acquisition may be
	// released a moment later. If the Armer's error is [fence.ErrUnknown], the fences may have been raised; that only
	// makes older grants stale. The [*HeldError] names the resource that is held.
	Acquire(ctx context.Context, wait Wait, all ...Request) ([]Lease, error)

	// Extend gives a lease a new time to live, counted from now, and returns its new deadline. A lease that is over is
	// never revived: the error is [ErrLost]. It is over when the service has removed it, which may be seconds after its
	// deadline, or with the session of the process that took it; until then nobody else has had the resource, and
	// Extend succeeds. After [ErrUnavailable] the lease is valid until its old deadline, or until now + ttl if that is
	// sooner.
	Extend(ctx context.Context, ref Ref, ttl time.Duration) (clock.Instant, error)

	// Release ends a lease. [ErrLost]: it was over already, or another holder has the resource; nothing was changed.
	// Release runs even if ctx has ended. If there is an Armer, the grant is ended first, within a time limit; the
	// resource is freed whatever [Armer.End] returns.
	Release(ctx context.Context, ref Ref) error

	// Inspect says who holds each of the resources, in their order. The answer is for display: it may be outdated. With
	// [ErrUnavailable] the inspections contain what could be learned.
	Inspect(ctx context.Context, resources ...string) ([]Inspection, error)

	// Ready reports whether the source can grant leases: nil, or [ErrUnavailable] with the reason. degraded says what
	// is missing of a source that grants them, without naming servers; "": nothing.
	Ready(ctx context.Context) (degraded string, err error)

	// Close aborts waiting callers and frees the source's resources. Leases stay held until they expire. Later calls
	// fail with [ErrClosed]. Closing twice is not an error.
	Close() error
}

// Wait says what an acquisition does while another holds a resource.
type Wait bool

const (
	AtOnce    Wait = false // it fails with a [*HeldError]
	UntilDone Wait = true  // it waits until its context is done
)

// One returns the only element of an answer about one resource.
func One[T any](all []T, err error) (one T, _ error) {
	if len(all) == 1 {
		one = all[0]
	}
	return one, err
}

// Armer raises the fences of resources to new tokens, as the last step of an acquisition. A source that was created with
// an Armer arms every lease before it returns it. A pgfence.Fence is one.
type Armer interface {
	// Arm raises the fences in one transaction, in the given order: all or none. See [fence.Arming].
	//
	// nil: each fence stands at its token with this seal, and no older writer is left. [*fence.NotRaisedError]: nothing
	// was raised; the error names the resource and has the recorded token, and the source retries with a token above
	// it, a bounded number of times. Joined with [fence.ErrUnknown]: they may have been raised.
	Arm(ctx context.Context, all ...fence.Arming) error

	// End ends a grant, so that writes under a released lease are refused before the next acquisition. The fence may be
	// unavailable, so a source calls it with a time limit.
	//
	// nil: the grant has ended. [*fence.StaleError]: a newer one has superseded it. After any other error it may be
	// current until the next acquisition.
	End(ctx context.Context, e fence.Ending) error

	// Floor is a token up to which the fence is known to refuse; 0: none. A source issues tokens above it, so that a new
	// or long unused name is armed at the first attempt. It may be outdated; then [*fence.NotRaisedError] has the
	// current one.
	Floor(resource string) fence.Token

	// Raised reports whether a fence was ever raised. A source that finds its servers empty treats them as new only if
	// none was. Otherwise they have lost leases that may still be held.
	Raised(ctx context.Context) (bool, error)
}

// Metrics receives the events of a source. Its methods are called concurrently and must not block.
type Metrics interface {
	// Acquired reports a lease: the time since the call, including waiting and arming, and how many servers had granted
	// it when it was decided.
	Acquired(waited time.Duration, granted int)
	// Failed reports that an operation ("acquire", "extend", "release") failed, with a word for the cause.
	Failed(operation, cause string)
	// Renewed reports that a lease was extended.
	Renewed()
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
	Grant    fence.Grant   // what to present with each write: holds a secret, unless the request had a SealHash
	Owner    string        // identifies the acquisition, together with resource and token
	Deadline clock.Instant // counted from before the first message, less the drift allowance
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
