package api

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// Leases is what the API needs of a [leasing.Source]. If an acquisition fails with an error that is not the source's
// own, arming failed; a [*leasing.UnavailableError] names the part.
type Leases interface {
	Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error)
	Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error)
	Release(ctx context.Context, ref leasing.Ref) error
	Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error)
}

var _ Leases = leasing.Source(nil)

// Fences reads the durable record, and takes resources from their holders.
type Fences interface {
	// Inspect returns [ErrNotFound] for a resource that was never armed.
	Inspect(ctx context.Context, resource string) (fence.Record, error)
	// Holds reports whether the fence is still at the record's token, with a seal of this hash, and its grant has not
	// ended. Writers that passed the check under an older grant have ended.
	Holds(ctx context.Context, record fence.Record, sealHash []byte) (bool, error)
	// List returns at most limit records whose resource begins with prefix and comes
	// after `after`, in the order of the names' bytes.
	List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error)
	// Revoke raises the fence past the holder, to a token that nobody has, and returns it. by names the caller, for
	// people. seen, if not 0, is the token of the holder to revoke; if another token is recorded meanwhile, Revoke
	// fails with a [*fence.NotRaisedError]. It returns [ErrNotFound] as above, or a [*fence.UndrainedError] if the
	// fence is raised but a write of the holder may still land.
	Revoke(ctx context.Context, resource, by string, seen fence.Token) (fence.Token, error)
}

// Credentials issues S3 credentials that are fenced by a lease's token. The API adds the endpoint.
type Credentials interface {
	Issue(resource string, token fence.Token, expires time.Time, terms CredentialTerms) (wire.Credentials, error)
}

// CredentialTerms are the terms of S3 credentials.
type CredentialTerms struct {
	WhileHeld bool // they write only while the lease is held, because they may expire later
	OwnKeys   bool // they read only keys of their resource
	ReadOnly  bool // they only read
	EndHeld   bool // they do not read either once the lease is over

	Principal string // its current rights bound them; "": no bound
}

// Buckets creates buckets and says which resource their writes need. Errors are [fence.ErrInvalid], [ErrNotFound] if
// the bucket does not exist, [ErrConflict] if it has objects that were written under another rule or as write-once, or
// a [*leasing.UnavailableError].
type Buckets interface {
	// EnsureBucket creates the bucket with the rule, or sets the rule of an existing one; created says which. With an
	// empty rule the bucket must exist. Other empty fields stay unchanged. All fields are set, or none.
	EnsureBucket(ctx context.Context, name string, want wire.BucketRequest) (created bool, err error)
	InspectBucket(ctx context.Context, name string) (wire.Bucket, error)
	// ListBuckets returns at most limit buckets whose names come after `after`.
	ListBuckets(ctx context.Context, after string, limit int) ([]wire.Bucket, error)
	SetPrefixRule(ctx context.Context, name, prefix, rule string) error
	// DropPrefixRule is idempotent.
	DropPrefixRule(ctx context.Context, name, prefix string) error
}

// SQL runs statements under a grant, in one transaction.
type SQL interface {
	// Run returns a [*StatementError] for the statement that failed, with nothing committed; an error that is
	// [fence.ErrUnknown] if the outcome of COMMIT is unknown; a [*TooLargeError] or a [*leasing.UnavailableError], with
	// nothing committed.
	Run(ctx context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error)
}

// Sessions are the sessions of this gateway's PostgreSQL port.
type Sessions interface {
	// List returns the open sessions, the oldest first.
	List() []wire.Session
	// End ends a session, also inside a transaction; false: no session has this id.
	End(id string) bool
}

// Events are the latest events of this gateway.
type Events interface {
	// Tell adds an event.
	Tell(e activity.Event)
	// Since returns the events after the one with this id. If there are none, it waits until ctx ends.
	Since(ctx context.Context, id string) ([]activity.Event, error)
	// Kept is Since without the wait.
	Kept(id string) []activity.Event
	// RefusedSince and RefusedKept are the same for refusals only. Other events do not displace them.
	RefusedSince(ctx context.Context, id string) ([]activity.Event, error)
	RefusedKept(id string) []activity.Event
}

var _ Events = (*activity.Feed)(nil)

// Check checks whether one part that the gateway needs can serve. Part is [wire.PartPostgres] or [wire.PartRedis]. Run
// returns nil if it can, and a [*DegradedError] if the gateway serves with something missing.
type Check struct {
	Part string
	Run  func(context.Context) error

	// Leases says that it checks the source of leases.
	Leases bool

	// Note, if set, appears in the answer of /readyz while the part serves. It is public.
	Note string

	// For are the surfaces that need the part, as in /readyz?for=. Defaults to nil: all.
	For []string
}
