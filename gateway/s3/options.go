package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/edge"
)

// Options are the values that an operator chooses. Fields without a default must be set.
type Options struct {
	// Root credentials may read, and manage buckets. They write no object.
	RootAccessKey, RootSecretKey string

	Region      string       // default us-east-1
	Domain      string       // buckets are reached as BUCKET.Domain too; default: by path only
	DefaultRule objects.Rule // of buckets that are created over S3; default BucketRule

	// Blobs that are kept ready for uploads of at most 64 KiB, about, while there are such uploads. Default 128; negative: none.
	Reserve int

	// What is beyond a limit is answered 503 SlowDown.
	MaxConnections int // default 4096
	MaxRequests    int // at work at the same time. Default 1024
	MaxUploads     int // at work at the same time, parts of multipart uploads each. Default 256

	HeaderTimeout   time.Duration // of a request's headers, from their first byte or the connection's begin. Default 10s
	UploadTimeout   time.Duration // of a request's body at the most; a small one has less. Default 12h
	StallTimeout    time.Duration // of a connection on which nothing moves while a request or response is under way. Default 1m
	DatabaseTimeout time.Duration // of one statement. Default 10s
	DrainTimeout    time.Duration // of the requests under way when the server stops. Default 10s
}

// Validate returns a [*fence.InvalidError] that names the field and shows no secret.
func (o Options) Validate() error {
	switch {
	case (o.RootAccessKey == "") != (o.RootSecretKey == ""):
		return &fence.InvalidError{Field: "RootAccessKey", Reason: "and RootSecretKey are needed together"}
	case min(o.MaxConnections, o.MaxRequests, o.MaxUploads) < 0:
		return &fence.InvalidError{Field: "MaxConnections", Reason: "or MaxRequests or MaxUploads is negative"}
	case min(o.HeaderTimeout, o.StallTimeout, o.UploadTimeout, o.DatabaseTimeout, o.DrainTimeout) < 0:
		return &fence.InvalidError{Field: "times", Reason: "include a negative one"}
	case !edge.ValidDomain(o.Domain):
		return &fence.InvalidError{Field: "Domain", Reason: fmt.Sprintf("is %q; a lower-case host name without a port is needed, such as s3.example.com", o.Domain)}
	}
	return nil
}

// WithDefaults are the options with what holds where nothing was chosen. Root
// credentials have no default.
func (o Options) WithDefaults() Options {
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if o.Reserve == 0 {
		o.Reserve = 128
	}
	orDefault(&o.MaxConnections, 4096)
	orDefault(&o.MaxRequests, 1024)
	orDefault(&o.MaxUploads, 256)
	orDefault(&o.HeaderTimeout, 10*time.Second)
	orDefault(&o.UploadTimeout, 12*time.Hour)
	orDefault(&o.StallTimeout, time.Minute)
	orDefault(&o.DatabaseTimeout, 10*time.Second)
	orDefault(&o.DrainTimeout, 10*time.Second)
	return o
}

// Deps are what a server works with. Fields without a default must be set.
type Deps struct {
	Pool    *pgxpool.Pool                                  // logged in as a member of fence_gateway
	Store   blob.Store                                     // where the bytes go
	Keys    *credentials.Keyring                           // of the leases' credentials
	Leases  Leases                                         // for credentials that outlive a lease's deadline; default: every lease is held
	Rights  Rights                                         // of principals, asked with each request; default: nil, everybody may do everything
	TLS     *tls.Config                                    // default: plain HTTP
	Logger  *slog.Logger                                   // default: discards
	Metrics Metrics                                        // default: none
	Tell    func(activity.Event)                           // is given what the fence refused, for people; default: nobody is told
	Changes func(context.Context) (context.Context, error) // see [objects.Database.Changes]; default: nobody is asked
}

// config is both, complete.
type config struct {
	Deps
	Options
}

func configOf(deps Deps, o Options) (config, error) {
	c := config{Deps: deps, Options: o}
	switch {
	case c.Pool == nil:
		return c, errors.New("s3: no PostgreSQL pool")
	case c.Store == nil:
		return c, errors.New("s3: no blob store")
	case c.Keys == nil:
		return c, errors.New("s3: no keyring")
	case c.RootAccessKey == "" || c.RootSecretKey == "":
		return c, errors.New("s3: no root credentials")
	}
	if err := o.Validate(); err != nil {
		return c, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	c.Options = o.WithDefaults()
	return c, nil
}

// timeouts are those of the port's edge.
func (c config) timeouts() edge.Timeouts {
	return edge.Timeouts{Header: c.HeaderTimeout, Upload: c.UploadTimeout, Stall: c.StallTimeout}
}

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
