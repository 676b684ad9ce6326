package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
)

// Options are what a user of the API may choose.
type Options struct {
	// BearerToken is asked of every request but those for health and the OpenAPI
	// document. Defaults to "": no token; then only loopback Hosts are served.
	BearerToken string
	// MaxWait is the longest wait of an acquisition. Defaults to 5 min.
	MaxWait time.Duration
	// MaxLease is how long a lease may be renewed from its acquisition. Defaults to 24 h;
	// [Unlimited]: for as long as its holder renews it.
	MaxLease time.Duration
	// PrincipalRate is how many requests in a second each principal may make, renewals and
	// releases of leases aside; without principals, all clients that have the bearer token
	// together. Defaults to 0: no bound.
	PrincipalRate int
	// BodyTimeout bounds the reading of a request's body, also of one that nobody asked
	// for. Defaults to 30 s.
	BodyTimeout time.Duration
	// MaxConnections is how many connections may be open at once. A further one takes the place
	// of one that asks nothing; where there is none, it is closed. Defaults to 4096.
	MaxConnections int
}

// Validate reports a [*fence.InvalidError] that names the field.
func (o Options) Validate() error {
	if o.PrincipalRate < 0 {
		return &fence.InvalidError{Field: "PrincipalRate", Reason: "is negative"}
	}
	if o.MaxConnections < 0 {
		return &fence.InvalidError{Field: "MaxConnections", Reason: "is negative"}
	}
	if min(o.MaxWait, o.BodyTimeout) < 0 || o.MaxLease < 0 && o.MaxLease != Unlimited {
		return &fence.InvalidError{Field: "times", Reason: "include a negative one"}
	}
	return nil
}

// Unlimited is a [Options.MaxLease] that ends no lease.
const Unlimited time.Duration = -1

// MaxCredentials is how long S3 credentials last at most, however long their lease may be
// renewed: the records of writes stay longer than that.
const MaxCredentials = 24 * time.Hour

const defaultMaxLease = 24 * time.Hour

func (o Options) withDefaults() Options {
	o.MaxWait = cmp.Or(o.MaxWait, 5*time.Minute)
	o.MaxLease = cmp.Or(o.MaxLease, defaultMaxLease)
	o.BodyTimeout = cmp.Or(o.BodyTimeout, 30*time.Second)
	o.MaxConnections = cmp.Or(o.MaxConnections, 4096)
	return o
}

// Config says what a [Server] offers, and with what it works. It is validated once, by
// [New].
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

	// Events keeps what happened at this gateway, and records what happens. Defaults to
	// nil: its path answers 501.
	Events Events

	// Status is how the gateway is, but for what Checks find. Defaults to nil: nothing more
	// is told.
	Status func(ctx context.Context) wire.Status

	// Endpoints says where the other ports are, for a client that reaches this one by
	// host. Defaults to nil: there are none.
	Endpoints func(host string) wire.Endpoints

	// Principals say who may do what; then BearerToken counts for nothing. Defaults to nil:
	// every authenticated client may do everything.
	Principals *access.Principals

	// SQLPerPrincipal is how many requests of one principal may run SQL at once; more wait.
	// Defaults to 0: no bound.
	SQLPerPrincipal int

	// Surfaces are those that /readyz?for= knows of beside leases: [wire.SurfacePG] and others.
	// Defaults to none.
	Surfaces []string
	// Checks are what /readyz looks at. Defaults to none: always ready.
	Checks []Check

	// Handles are the keys of the leases' handles. Required.
	Handles HandleKeys

	// DefaultTTL is a lease's time to live where the request names none. Defaults to 30 s.
	DefaultTTL time.Duration
	// MaxTTL is the greatest time to live. Defaults to 5 min.
	MaxTTL time.Duration
	// DrainTimeout bounds how long a stop waits for requests under way. Defaults to 10 s.
	DrainTimeout time.Duration

	// TLS is what the API speaks. Defaults to nil: plain HTTP.
	TLS *tls.Config

	// Metrics serves /metrics. Defaults to nil: the path answers 501.
	Metrics http.Handler
	// Observe is called after each request. Defaults to nil.
	Observe func(route, method string, status int, took time.Duration)
	// Ended is called after a lease ended that was acquired here or at another
	// replica, with how long it was held. Defaults to nil.
	Ended func(held time.Duration, lost bool)

	// Logger receives failures; never a body, a header or a secret. Defaults to slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Options = c.Options.withDefaults()
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.MaxTTL = cmp.Or(c.MaxTTL, 5*time.Minute)
	c.DefaultTTL = min(cmp.Or(c.DefaultTTL, 30*time.Second), c.MaxTTL)
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
	case min(c.DefaultTTL, c.MaxTTL, c.DrainTimeout) < 0:
		return &fence.InvalidError{Field: "times", Reason: "include a negative one"}
	}
	return c.Options.Validate()
}
