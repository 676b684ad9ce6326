//go:build unix

package stack

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// S3Config configures an S3 port alone.
type S3Config struct {
	URL       string                  // the database's, as the superuser
	Blobs     string                  // folder of the blobs
	Root      credentials.Credentials // of the operator; default: random ones
	MasterKey string                  // default: a random one
	Addr      string                  // default: a free port of 127.0.0.1
	Rule      objects.Rule            // of buckets that are created over S3
	Logger    *slog.Logger            // default: discards
}

// S3 is an S3 port in this process, without a gateway around it.
type S3 struct {
	*s3.Server

	Addr string
	Root credentials.Credentials

	keys *credentials.Keyring
	stop func() error
}

// StartS3 starts to serve S3 requests. The caller closes it.
func StartS3(ctx context.Context, cfg S3Config) (s *S3, err error) {
	if cfg.Root.AccessKeyID == "" {
		cfg.Root = credentials.Credentials{AccessKeyID: "root-" + rand.Text(), SecretAccessKey: rand.Text()}
	}
	s = &S3{Root: cfg.Root}
	if s.keys, err = credentials.ParseKeyring(cmp.Or(cfg.MasterKey, NewMasterKey())); err != nil {
		return nil, err
	}
	store, err := blob.OpenDir(cfg.Blobs)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, cfg.URL)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	s.Server, err = s3.New(s3.Deps{Pool: pool, Store: store, Keys: s.keys, Logger: cfg.Logger}, s3.Options{
		RootAccessKey: cfg.Root.AccessKeyID, RootSecretKey: cfg.Root.SecretAccessKey, DefaultRule: cfg.Rule,
	})
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", cmp.Or(cfg.Addr, "127.0.0.1:0"))
	if err != nil {
		return nil, err
	}
	s.Addr = ln.Addr().String()
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, ln) }()
	s.stop = func() error {
		cancel()
		defer pool.Close()
		return <-served
	}
	return s, nil
}

// Issue returns the credentials of a grant, which need not be current.
func (s *S3) Issue(resource string, token fence.Token) (credentials.Credentials, error) {
	return s.keys.Issue(resource, token, time.Now().Add(time.Hour), 0)
}

// Close ends the server.
func (s *S3) Close() error { return s.stop() }
