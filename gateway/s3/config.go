package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/internal/option"
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

// Table declares the options, with the flags of `fencegate serve`.
func (o *Options) Table() option.Table {
	return option.Table{
		{Field: "RootAccessKey", At: &o.RootAccessKey, With: "RootSecretKey", Flag: "s3-access-key", Secret: true, Help: "access key that may read all objects and manage buckets"},
		{Field: "RootSecretKey", At: &o.RootSecretKey, Flag: "s3-secret-key-file", Secret: true, Help: "file with its secret key"},
		{Field: "Region", At: &o.Region, Default: "us-east-1", Flag: "region", Key: "s3.region", Help: "S3 region"},
		{Field: "Domain", At: &o.Domain, Check: checkDomain, Flag: "s3-domain", Help: "host name below which buckets are reached as BUCKET.DOMAIN, beside paths (default: by path only)"},
		{Field: "Reserve", At: &o.Reserve, Default: 128, Check: func(any) string { return "" }},
		{Field: "MaxConnections", At: &o.MaxConnections, Default: 4096, Check: option.Positive, Flag: "s3-max-connections", Help: "how many connections the S3 port takes at once; a request on a further one is answered 503 SlowDown"},
		{Field: "MaxRequests", At: &o.MaxRequests, Default: 1024, Check: option.Positive, Flag: "s3-max-requests", Help: "how many requests the S3 port works on at once"},
		{Field: "MaxUploads", At: &o.MaxUploads, Default: 256, Check: option.Positive, Flag: "s3-max-uploads", Help: "how many of them may be uploads or copies of objects or parts"},
		{Field: "HeaderTimeout", At: &o.HeaderTimeout, Default: 10 * time.Second, Check: option.Positive, Flag: "s3-header-timeout", Help: "how long the headers of a request to the S3 port may take"},
		{Field: "UploadTimeout", At: &o.UploadTimeout, Default: 12 * time.Hour, Check: option.Positive, Flag: "s3-upload-timeout", Help: "how long an upload may take at the most; it has less if it is small: the stall timeout, and a second for each 32 KiB"},
		{Field: "StallTimeout", At: &o.StallTimeout, Default: time.Minute, Check: option.Positive, Flag: "s3-stall-timeout", Help: "how long nothing may move on a connection to the S3 port while a request is under way, and how long it may be idle"},
		{Field: "DatabaseTimeout", At: &o.DatabaseTimeout, Default: 10 * time.Second},
		{Field: "DrainTimeout", At: &o.DrainTimeout, Default: 10 * time.Second},
		{Field: "patience", At: &o.patience, Default: 10 * time.Second},
		{Field: "lingering", At: &o.lingering, Default: edge.Lingering},
	}
}

func checkDomain(domain any) string {
	if edge.ValidDomain(domain.(string)) {
		return ""
	}
	return fmt.Sprintf("is %q; a lower-case host name without a port is needed, such as s3.example.com", domain)
}

// Validate returns a [*fence.InvalidError] that names the field and shows no secret.
func (o Options) Validate() error { return o.Table().Validate() }

// WithDefaults returns the options with defaults filled in. Root credentials have no default.
func (o Options) WithDefaults() Options {
	o.Table().SetDefaults()
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
