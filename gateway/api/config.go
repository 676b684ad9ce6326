package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/internal/option"
	"github.com/fencegate/fencegate/wire"
)

// Options are the API's options for users.
type Options struct {
	// BearerToken is required of every request except those for health and the OpenAPI document. Defaults to "": no
	// token; then the API serves only loopback Hosts.
	BearerToken string
	// MaxWait is the longest wait of an acquisition. Defaults to 5 min.
	MaxWait time.Duration
	// MaxLease is how long a lease may be renewed from its acquisition. Defaults to 24 h;
	// [Unlimited]: for as long as its holder renews it.
	MaxLease time.Duration
	// PrincipalRate is how many requests per second each principal may make, renewals and releases of leases excepted.
	// Without principals, all clients with the bearer token share one limit. Defaults to 0: no limit.
	PrincipalRate int
	// BodyTimeout bounds the reading of a request's body, also of an unexpected one. Defaults to 30 s.
	BodyTimeout time.Duration
	// MaxConnections bounds the open connections. A further connection replaces an idle one; if none is idle, it is
	// closed. Defaults to 4096.
	MaxConnections int
}

// Table declares the options, with the flags of `fencegate serve`.
func (o *Options) Table() option.Table {
	return option.Table{
		{Field: "BearerToken", At: &o.BearerToken, Flag: "token-file", Key: "api.token-file", Common: true, Secret: true, Reload: option.WithPrincipals, Help: "file with the bearer token of the HTTP API, with --principals read again at SIGHUP (default off loopback: one is made and shown, on a terminal)"},
		{Field: "MaxWait", At: &o.MaxWait, Default: 5 * time.Minute},
		{Field: "MaxLease", At: &o.MaxLease, Default: 24 * time.Hour, Check: checkMaxLease, Flag: "max-lease", Help: "how long a lease of the HTTP API may be renewed from its acquisition; 0: without limit"},
		{Field: "PrincipalRate", At: &o.PrincipalRate, Flag: "api-rate", Help: "how many requests per second each principal may make to the HTTP API and the live page, except renewals and releases of leases (default: no limit)"},
		{Field: "BodyTimeout", At: &o.BodyTimeout, Default: 30 * time.Second},
		{Field: "MaxConnections", At: &o.MaxConnections, Default: 4096, Check: option.Positive, Flag: "api-max-connections", Help: "how many connections the HTTP API has open at once; a further one replaces an idle one, or is closed if none is idle"},
	}
}

func checkMaxLease(v any) string {
	if d := v.(time.Duration); d < 0 && d != Unlimited {
		return "is negative"
	}
	return ""
}

// Unlimited is the [Options.MaxLease] with which leases may be renewed forever.
const Unlimited time.Duration = -1

// MaxCredentials is the longest life of S3 credentials, however long their lease may be renewed: the records of writes
// are kept longer than that.
const MaxCredentials = 24 * time.Hour

// Config says what a [Server] offers and what it works with. [New] validates it once.
type Config struct {
	Options

	// Leases and Fences are required.
	Leases Leases
	Fences Fences

	// Credentials, Buckets, SQL and Sessions may be nil: their paths then answer 501.
	Credentials Credentials
	Buckets     Buckets
	SQL         SQL
	Sessions    Sessions

	// Events keeps and records the events of this gateway. Defaults to nil: its path answers 501.
	Events Events

	// Status returns the gateway's status, without the results of Checks. Defaults to nil: the status has the Checks'
	// results only.
	Status func(ctx context.Context) wire.Status

	// Endpoints returns the addresses of the other ports, for a client that reaches this one by host. Defaults to nil:
	// there are none.
	Endpoints func(host string) wire.Endpoints

	// Principals say who may do what; with them BearerToken grants nothing. Defaults to nil: every authenticated client
	// may do everything.
	Principals *access.Principals

	// SQLPerPrincipal is how many requests of one principal may run SQL at once; more wait. Defaults to 0: no limit.
	SQLPerPrincipal int

	// Surfaces are the values of /readyz?for= besides leases: [wire.SurfacePG] and others. Defaults to none.
	Surfaces []string
	// Checks are the checks of /readyz. Defaults to none: always ready.
	Checks []Check

	// Handles are the keys for the handles of leases. Required.
	Handles HandleKeys

	// DefaultTTL is a lease's time to live if the request names none. Defaults to 30 s.
	DefaultTTL time.Duration
	// MaxTTL is the longest time to live. Defaults to what Leases grants.
	MaxTTL time.Duration
	// DrainTimeout bounds how long a stop waits for requests under way. Defaults to 10 s.
	DrainTimeout time.Duration

	// TLS is the API's TLS configuration. Defaults to nil: plain HTTP.
	TLS *tls.Config

	// Metrics serves /metrics. Defaults to nil: the path answers 501.
	Metrics http.Handler
	// Observe is called after each request. Defaults to nil.
	Observe func(route, method string, status int, took time.Duration)
	// Ended is called when a lease has ended, acquired here or at another replica, with how long it was held. Defaults
	// to nil.
	Ended func(held time.Duration, lost bool)

	// Logger receives failures; never a body, a header or a secret. Defaults to slog.Default().
	Logger *slog.Logger
}

func (c *Config) table() option.Table {
	return append(c.Options.Table(),
		option.Row{Field: "DefaultTTL", At: &c.DefaultTTL, Default: 30 * time.Second},
		option.Row{Field: "MaxTTL", At: &c.MaxTTL},
		option.Row{Field: "DrainTimeout", At: &c.DrainTimeout, Default: 10 * time.Second},
	)
}

func (c Config) withDefaults() Config {
	c.table().SetDefaults()
	c.DefaultTTL = min(c.DefaultTTL, cmp.Or(c.MaxTTL, c.DefaultTTL))
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Leases == nil:
		return &fence.InvalidError{Field: "Leases", Reason: "are missing"}
	case c.Fences == nil:
		return &fence.InvalidError{Field: "Fences", Reason: "are missing"}
	}
	return c.table().Validate()
}

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
	// people. seen, if not 0, is the token of the holder to revoke; if another token is recorded by then, Revoke
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
