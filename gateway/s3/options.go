package s3

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
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

// Deps are what a server works with. Fields without a default must be set.
type Deps struct {
	Pool    *pgxpool.Pool        // logged in as a member of fence_gateway
	Store   blob.Store           // where the bytes go
	Keys    *credentials.Keyring // of the leases' credentials
	TLS     *tls.Config          // default: plain HTTP
	Logger  *slog.Logger         // default: discards
	Metrics Metrics              // hears what happens; default: nobody does
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
	if c.Region == "" {
		c.Region = "us-east-1"
	}
	if !edge.ValidDomain(c.Domain) {
		return c, &fence.InvalidError{Field: "domain", Reason: fmt.Sprintf("is %q; a lower-case host name without a port is needed, such as s3.example.com", c.Domain)}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = deaf{}
	}
	if c.Reserve == 0 {
		c.Reserve = 128
	}
	orDefault(&c.MaxConnections, 4096)
	orDefault(&c.MaxRequests, 1024)
	orDefault(&c.MaxUploads, 256)
	orDefault(&c.HeaderTimeout, 10*time.Second)
	orDefault(&c.UploadTimeout, 12*time.Hour)
	orDefault(&c.StallTimeout, time.Minute)
	orDefault(&c.DatabaseTimeout, 10*time.Second)
	orDefault(&c.DrainTimeout, 10*time.Second)
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
