package api

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/activity"
)

// Leases is what the API needs of a [leasing.Source]. An error of an acquisition
// that is not the source's own comes from arming; an [*UnavailableError] says
// which part failed.
type Leases interface {
	TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error)
	Release(ctx context.Context, ref leasing.Ref) error
	Inspect(ctx context.Context, resource string) (leasing.Inspection, error)
}

var _ Leases = leasing.Source(nil)

// allLeases is what POST /v1/leases/all needs: a [leasing.AllSource] has it.
type allLeases interface {
	TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error)
	AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error)
}

var _ allLeases = leasing.AllSource(nil)

// Fences reads the durable record, and takes resources from their holders.
type Fences interface {
	// Inspect returns [ErrNotFound] for a resource that was never armed.
	Inspect(ctx context.Context, resource string) (fence.Record, error)
	// Holds reports whether the fence still stands at the record's token, with a seal of this
	// hash, and its grant has not ended. Writers that passed the check under an older one have ended.
	Holds(ctx context.Context, record fence.Record, sealHash []byte) (bool, error)
	// List returns at most limit records whose resource begins with prefix and comes
	// after `after`, in the order of the names' bytes.
	List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error)
	// Revoke raises the fence past the holder, to a token that nobody has, and
	// returns it. by names who asked, for people. [ErrNotFound] as above; a
	// [*fence.UndrainedError] where it is raised, but a write of the holder may still
	// land. With a token it does so only where no other is recorded meanwhile: else a
	// [*fence.NotRaisedError]. 0: any holder.
	Revoke(ctx context.Context, resource, by string, seen fence.Token) (fence.Token, error)
}

// Credentials issues S3 credentials that are fenced by a lease's token. Where they are
// to be used, the API says.
type Credentials interface {
	Issue(resource string, token fence.Token, expires time.Time, terms CredentialTerms) (wire.Credentials, error)
}

// CredentialTerms say what credentials are good for.
type CredentialTerms struct {
	WhileHeld bool // they write only while the lease is held, for they may expire later
	OwnKeys   bool // they read only keys of their resource
	ReadOnly  bool // they write nothing
	EndHeld   bool // they read nothing either once the lease is over

	Principal string // whose rights of each moment bound them; "": everybody's
}

// Buckets makes buckets and says which resource their writes need. Errors are
// [fence.ErrInvalid], [ErrNotFound] where there is no such bucket, [ErrConflict]
// where objects lie below that were written under another rule, or once, or an
// [*UnavailableError].
type Buckets interface {
	// EnsureBucket makes the bucket with the rule, or gives it to an existing one;
	// created says which. With an empty rule the bucket must be there. Whatever else is
	// empty stays as it is.
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
	// Run returns a [*StatementError] for the statement that failed, with nothing
	// committed; an error that is [fence.ErrUnknown] where the outcome of COMMIT is
	// not known; a [*TooLargeError] or an [*UnavailableError], with nothing committed.
	Run(ctx context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error)
}

// Sessions are those of this gateway's PostgreSQL port.
type Sessions interface {
	// List returns those that are open, the oldest first.
	List() []wire.Session
	// End ends one, also inside a transaction; false: there is none with this id.
	End(id string) bool
}

// Events are the latest of this gateway.
type Events interface {
	// Tell adds one.
	Tell(e activity.Event)
	// Since returns what came after the event with this id, or waits for it until ctx ends.
	Since(ctx context.Context, id string) ([]activity.Event, error)
	// Kept is Since without the wait.
	Kept(id string) []activity.Event
	// RefusedSince and RefusedKept are the same for the refusals alone, of which other events
	// push none out.
	RefusedSince(ctx context.Context, id string) ([]activity.Event, error)
	RefusedKept(id string) []activity.Event
}

var _ Events = (*activity.Feed)(nil)

// Check looks whether one part that the gateway needs can serve. Part is
// [wire.PartPostgres] or [wire.PartRedis]; Run returns nil where it can, and a [*DegradedError]
// where only something is missing that the gateway serves without.
type Check struct {
	Part string
	Run  func(context.Context) error

	// Degraded, if set, says what of a part that serves is missing; "": nothing. Anybody may read it.
	Degraded func(context.Context) string

	// Note, if set, appears in the answer of /readyz while the part serves. It needs no token to read.
	Note string

	// For are the surfaces that need it, as /readyz?for= names them. Defaults to nil: each.
	For []string
}
