package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
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
		{Field: "MaxLease", At: &o.MaxLease, Default: defaultMaxLease, Check: checkMaxLease, Flag: "max-lease", Help: "how long a lease of the HTTP API may be renewed from its acquisition; 0: without limit"},
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

const defaultMaxLease = 24 * time.Hour

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
