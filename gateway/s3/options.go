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
	Domain      string       // buckets are also reached as BUCKET.Domain; default: by path only
	DefaultRule objects.Rule // of buckets created over S3; default BucketRule

	// Reserve is how many blobs are kept ready while there are uploads of up to 64 KiB. Default 128; negative: none.
	Reserve int

	// Requests beyond a limit are answered with 503 SlowDown.
	MaxConnections int // default 4096
	MaxRequests    int // in progress. Default 1024
	MaxUploads     int // in progress, each part of a multipart upload and each copy counted. Default 256

	HeaderTimeout   time.Duration // of a request's headers, from the connection or their first byte. Default 10s
	UploadTimeout   time.Duration // the longest time for a request's body; a small one has less. Default 12h
	StallTimeout    time.Duration // of a connection without progress during a request or response. Default 1m
	DatabaseTimeout time.Duration // of one statement. Default 10s
	DrainTimeout    time.Duration // of the requests in progress when the server stops. Default 10s

	patience  time.Duration // of the client of a copy: then its answer begins. Default 10s
	lingering time.Duration // default edge.Lingering
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

// WithDefaults returns the options with defaults filled in. Root credentials have no default.
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
	orDefault(&o.patience, 10*time.Second)
	orDefault(&o.lingering, edge.Lingering)
	return o
}

// Deps are what a server works with. Fields without a default must be set.
type Deps struct {
	Pool    *pgxpool.Pool                                  // logged in as a member of fence_gateway
	Store   blob.Store                                     // stores the bytes
	Keys    *credentials.Keyring                           // of the leases' credentials
	Leases  Leases                                         // for credentials that outlive a lease; default: all leases are held
	Rights  Rights                                         // checked for each request; default: everybody may do everything
	TLS     *tls.Config                                    // default: plain HTTP
	Logger  *slog.Logger                                   // default: discards
	Metrics Metrics                                        // default: none
	Tell    func(activity.Event)                           // receives the fence's refusals as events; default: none
	Changes func(context.Context) (context.Context, error) // see [objects.Database.Changes]; default: none
}

// config is Deps and Options, with defaults.
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

// timeouts are the timeouts for package edge.
func (c config) timeouts() edge.Timeouts {
	return edge.Timeouts{Header: c.HeaderTimeout, Upload: c.UploadTimeout, Stall: c.StallTimeout}
}

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
