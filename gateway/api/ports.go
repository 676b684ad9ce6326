package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Leases is what the API needs of a [leasing.Source]. An error of an acquisition
// that is none of the source's own comes from arming; an [*UnavailableError] says
// which part failed.
type Leases interface {
	TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error)
	Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error)
	Release(ctx context.Context, ref leasing.Ref) error
	Inspect(ctx context.Context, resource string) (leasing.Inspection, error)
}

var _ Leases = leasing.Source(nil)

// Fences reads the durable record, and takes resources from their holders.
type Fences interface {
	// Inspect returns [ErrNotFound] for a resource that was never armed.
	Inspect(ctx context.Context, resource string) (fence.Record, error)
	// List returns at most limit records whose resource begins with prefix and comes
	// after `after`, in the order of the names' bytes.
	List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error)
	// Revoke raises the fence past the holder, to a token that nobody has, and
	// returns it. by names who asked, for people. [ErrNotFound] as above; a
	// [*fence.UndrainedError] where it is raised, but a write of the holder may still
	// land.
	Revoke(ctx context.Context, resource, by string) (fence.Token, error)
}

// S3Credentials are temporary credentials that any S3 client understands.
type S3Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	Expires         time.Time
}

// Endpoints says where the gateway's other ports are; nil where it has none.
type Endpoints struct {
	Postgres *PostgresEndpoint `json:"postgres"`
	S3       *S3Endpoint       `json:"s3"`
	Version  string            `json:"version"`
}

// PostgresEndpoint is the PostgreSQL port.
type PostgresEndpoint struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Database string `json:"database"`
}

// S3Endpoint is the S3 port.
type S3Endpoint struct {
	URL    string `json:"url"`
	Region string `json:"region"`
}

// Credentials issues S3 credentials that are fenced by a lease's token.
type Credentials interface {
	Issue(resource string, token fence.Token, expires time.Time) (S3Credentials, error)
}

// Bucket is a bucket and what holds in it.
type Bucket struct {
	Name      string
	Rule      string // which resource a write of a key needs
	Keep      string // what becomes of older versions
	Prefixes  []PrefixRule
	CreatedAt time.Time
}

// PrefixRule is the rule of the keys that begin with a prefix; the longest counts.
type PrefixRule struct {
	Prefix string `json:"prefix"`
	Rule   string `json:"rule"`
}

// Buckets makes buckets and says which resource their writes need. Errors are
// [fence.ErrInvalid], [ErrNotFound] where there is no such bucket, [ErrConflict]
// where objects lie below that were written under another rule, or an
// [*UnavailableError].
type Buckets interface {
	// EnsureBucket makes the bucket with the rule, or gives it to an existing one;
	// created says which. With an empty rule the bucket must be there. keep says
	// what becomes of older versions; empty leaves that.
	EnsureBucket(ctx context.Context, name, rule, keep string) (created bool, err error)
	InspectBucket(ctx context.Context, name string) (Bucket, error)
	// ListBuckets returns at most limit buckets whose names come after `after`.
	ListBuckets(ctx context.Context, after string, limit int) ([]Bucket, error)
	SetPrefixRule(ctx context.Context, name, prefix, rule string) error
	// DropPrefixRule is idempotent.
	DropPrefixRule(ctx context.Context, name, prefix string) error
}

// Statement is one SQL command and its arguments, as they stood in the request.
type Statement struct {
	SQL  string            `json:"sql"`
	Args []json.RawMessage `json:"args"`
}

// Column names one column of a result and its PostgreSQL type.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Result is what one statement gave.
type Result struct {
	Columns      []Column          `json:"columns"`
	Rows         []json.RawMessage `json:"rows"` // one JSON array each
	RowsAffected int64             `json:"rows_affected"`
	Command      string            `json:"command"` // PostgreSQL's command tag
}

// SQL runs statements under a grant, in one transaction.
type SQL interface {
	// Run returns a [*StatementError] for the statement that failed, with nothing
	// committed; an error that is [fence.ErrUnknown] where the outcome of COMMIT is
	// not known; a [*TooLargeError] or an [*UnavailableError], with nothing committed.
	Run(ctx context.Context, grant fence.Grant, statements []Statement) ([]Result, error)
}

// Session is an open session of the PostgreSQL port. It holds no secret.
type Session struct {
	ID             string
	Client         string // address
	User, Database string
	Resource       string      // of its grant; "": none came with the connection
	Token          fence.Token // 0: not known
	Leased         bool        // the gateway holds the lease for it
	State          string      // "active", "idle" or "idle in transaction"
	Since          time.Time
	FromClient     int64 // bytes
	ToClient       int64
}

// Sessions are those of this gateway's PostgreSQL port.
type Sessions interface {
	// List returns those that are open, the oldest first.
	List() []Session
	// End ends one, whatever it does; false: there is none with this id.
	End(id string) bool
}

// Check looks whether one part that the gateway needs can serve. Part is
// "postgresql" or "redis"; Run returns nil where it can.
type Check struct {
	Part string
	Run  func(context.Context) error
}
