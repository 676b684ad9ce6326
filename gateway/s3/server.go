package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"reflect"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// Config says what a server needs. Fields without a default must be set.
type Config struct {
	Pool  *pgxpool.Pool // logged in as a member of fence_gateway
	Store blob.Store    // where the bytes go
	Keys  *Keyring      // of the leases' credentials

	// Root credentials may read, and manage buckets. They write no object.
	RootAccessKey, RootSecretKey string

	Region      string       // default us-east-1
	Domain      string       // buckets are reached as BUCKET.Domain too; default: by path only
	TLS         *tls.Config  // default: plain HTTP
	DefaultRule Rule         // of buckets that are created over S3; default BucketRule
	Logger      *slog.Logger // default: discards
	Metrics     Metrics      // hears what happens; default: nobody does

	// Blobs that are kept ready for uploads of at most 64 KiB, about, while there are such uploads. Default 128; negative: none.
	Reserve int

	// What is beyond a limit is answered 503 SlowDown.
	MaxConnections int // default 4096
	MaxRequests    int // at work at the same time. Default 1024
	MaxUploads     int // at work at the same time, parts of multipart uploads each. Default 256

	HeaderTimeout   time.Duration // of a request's headers, from their first byte or the connection's begin. Default 10s
	UploadTimeout   time.Duration // of a request's body at the most; a small one has less, see minBodyRate. Default 12h
	StallTimeout    time.Duration // of a connection on which nothing moves while a request or response is under way. Default 1m
	DatabaseTimeout time.Duration // of one statement. Default 10s
	DrainTimeout    time.Duration // of the requests under way when the server stops. Default 10s
}

func (c Config) withDefaults() (Config, error) {
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
	if !validDomain(c.Domain) {
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

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Server is a fenced S3 endpoint. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	app     *fiber.App
	backend *backend
	gate    *gate
	conns   connections
	stop    context.CancelFunc // of the backend's work
}

// New makes a server. It connects to nothing yet.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	base, stop := context.WithCancel(context.Background())
	be, err := newBackend(base, cfg)
	if err != nil {
		stop()
		return nil, err
	}
	s := &Server{cfg: cfg, backend: be, stop: stop, gate: &gate{cfg: cfg, lookups: be.lookups}}
	options := []s3api.Option{
		s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithMiddleware("/", s.gate.handle), s3api.WithMiddleware("/", inPlace{be, cfg.Domain}.handle),
		s3api.WithConcurrencyLimiter(cfg.MaxConnections+refusers+1, math.MaxInt32), // the gate and the listener have the limits
	}
	if cfg.Domain != "" {
		options = append(options, s3api.WithHostStyle(cfg.Domain))
	}
	front, err := s3api.New(be, middlewares.RootUserConfig{Access: cfg.RootAccessKey, Secret: cfg.RootSecretKey}, cfg.Region, iam{keys: cfg.Keys},
		nil, nil, nil, operations{}, options...)
	if err != nil {
		stop()
		return nil, fmt.Errorf("s3: set up the front: %w", err)
	}
	if s.app, err = appOf(front); err != nil {
		stop()
		return nil, err
	}
	guard(s.app.Server(), cfg)
	return s, nil
}

// appOf takes the HTTP application out of the front, which itself listens only
// on addresses that it opens, not on a listener that is given.
func appOf(front *s3api.S3ApiServer) (*fiber.App, error) {
	field := reflect.ValueOf(front).Elem().FieldByName("app")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*fiber.App]() {
		return nil, errors.New("s3: this version of the S3 front keeps its application elsewhere")
	}
	return (*fiber.App)(field.UnsafePointer()), nil
}

// Serve answers requests on the listener until ctx is done; then it takes no
// more, waits up to the drain timeout for those under way, cuts off the rest, and
// returns. Call it once. The listener is closed in any case.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	defer s.stop()
	defer s.backend.reserve.close()
	ended := make(chan error, 1)
	go func() {
		plain := &patient{Listener: ln, stall: s.cfg.StallTimeout, limit: s.cfg.MaxConnections, conns: &s.conns, log: s.cfg.Logger}
		ended <- s.app.Listener(tlsfiles.Listener(plain, s.cfg.TLS), fiber.ListenConfig{DisableStartupMessage: true})
	}()
	select {
	case err := <-ended:
		_ = ln.Close() // where the server failed before it listened
		return fmt.Errorf("s3: listen: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	err := s.app.ShutdownWithContext(drain)
	_ = ln.Close() // where the server had not yet begun to listen
	if drain.Err() != nil {
		err = nil
		s.cutOff()
	}
	return errors.Join(err, <-ended)
}

// cutOff ends the requests that outlast the drain timeout, and lets them give up
// what they have begun.
func (s *Server) cutOff() {
	s.cfg.Logger.Warn("s3: requests were cut off by the stop", "after", s.cfg.DrainTimeout, "connections", s.conns.count())
	s.conns.cut()
	tick, limit := time.NewTicker(10*time.Millisecond), time.After(s.cfg.DatabaseTimeout)
	defer tick.Stop()
	for s.conns.count() > 0 {
		select {
		case <-tick.C:
		case <-limit:
			return
		}
	}
}
