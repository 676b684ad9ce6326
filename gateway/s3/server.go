package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// Config says what a server needs. Fields without a default must be set.
type Config struct {
	Pool  *pgxpool.Pool // logged in as a member of fence_gateway
	Store blob.Store    // where the bytes go
	Keys  *Keyring      // of the leases' credentials

	// Root credentials may read, and manage buckets. They write no object.
	RootAccessKey, RootSecretKey string

	Region      string       // default us-east-1
	DefaultRule Rule         // of buckets that are created over S3; default BucketRule
	Logger      *slog.Logger // default: discards

	MaxConnections  int           // default 4096
	MaxRequests     int           // at work at the same time; more are answered 503 SlowDown. Default 1024
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
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	orDefault(&c.MaxConnections, 4096)
	orDefault(&c.MaxRequests, 1024)
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
	front, err := s3api.New(be, middlewares.RootUserConfig{Access: cfg.RootAccessKey, Secret: cfg.RootSecretKey}, cfg.Region, iam{keys: cfg.Keys},
		nil, nil, nil, nil, s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(cfg.MaxConnections, cfg.MaxRequests),
		s3api.WithMiddleware("/", gate(cfg)))
	if err != nil {
		stop()
		return nil, fmt.Errorf("s3: set up the front: %w", err)
	}
	app, err := appOf(front)
	if err != nil {
		stop()
		return nil, err
	}
	guard(app.Server(), cfg)
	return &Server{cfg: cfg, app: app, backend: be, stop: stop}, nil
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
// more, waits up to the drain timeout for those under way, and returns. Call it
// once. The listener is closed in any case.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	defer s.stop()
	ended := make(chan error, 1)
	go func() {
		ended <- s.app.Listener(&patient{Listener: ln, stall: s.cfg.StallTimeout}, fiber.ListenConfig{DisableStartupMessage: true})
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
	return errors.Join(err, <-ended)
}

// EnsureBucket makes a bucket, or gives an existing one the rule; created says
// which. ErrRuleInUse where it holds objects that were written under another
// rule; a [*fence.InvalidError] for a name that S3 does not allow.
func (s *Server) EnsureBucket(ctx context.Context, name string, rule Rule) (created bool, err error) {
	if err := checkBucket(name); err != nil {
		return false, err
	}
	created, err = s.backend.db.ensureBucket(ctx, name, rule)
	if err != nil {
		return false, fmt.Errorf("ensure bucket %q with rule %s: %w", name, rule, err)
	}
	return created, nil
}

// CreateBucketIfAbsent makes a bucket with the rule where there is none of that
// name; one that exists keeps its rule. Created says which, and current is the
// rule that holds now. A [*fence.InvalidError] for a name that S3 does not allow.
func (s *Server) CreateBucketIfAbsent(ctx context.Context, name string, rule Rule) (created bool, current Rule, err error) {
	if err := checkBucket(name); err != nil {
		return false, Rule{}, err
	}
	created, current, err = s.backend.db.createBucket(ctx, name, rule)
	if err != nil {
		return false, Rule{}, fmt.Errorf("create bucket %q with rule %s: %w", name, rule, err)
	}
	return created, current, nil
}

// SetKeep chooses what a bucket keeps of older versions. Those that are too many
// or too old by then go with the next sweep. The error is a [*fence.InvalidError],
// or [ErrNoBucket].
func (s *Server) SetKeep(ctx context.Context, bucket string, k Keep) error {
	if err := k.validate(); err != nil {
		return err
	}
	if err := s.backend.db.setKeep(ctx, bucket, k); err != nil {
		return fmt.Errorf("keep %s of bucket %q: %w", k, bucket, err)
	}
	return nil
}

// SetPrefixRule gives the keys of a bucket that begin with the prefix a rule of
// their own; the longest prefix counts. [ErrRuleInUse] where objects lie below it
// that were written under another rule, [ErrNoBucket], or a [*fence.InvalidError].
func (s *Server) SetPrefixRule(ctx context.Context, bucket, prefix string, rule Rule) error {
	if prefix == "" {
		return &fence.InvalidError{Field: "prefix", Reason: "is empty; the rule of all keys is the bucket's"}
	}
	if e := checkKey(prefix); e != nil {
		return &fence.InvalidError{Field: "prefix", Reason: e.Error()}
	}
	if err := s.backend.db.prefixRule(ctx, bucket, prefix, &rule); err != nil {
		return fmt.Errorf("rule %s of prefix %q in bucket %q: %w", rule, prefix, bucket, err)
	}
	return nil
}

// DropPrefixRule lets the keys below a prefix follow the rule of a shorter prefix
// or of the bucket again. Errors are as with [Server.SetPrefixRule].
func (s *Server) DropPrefixRule(ctx context.Context, bucket, prefix string) error {
	if err := s.backend.db.prefixRule(ctx, bucket, prefix, nil); err != nil {
		return fmt.Errorf("drop the rule of prefix %q in bucket %q: %w", prefix, bucket, err)
	}
	return nil
}

func checkBucket(name string) error {
	if validBucket(name) {
		return nil
	}
	return &fence.InvalidError{Field: "bucket", Reason: fmt.Sprintf("is %q; S3 wants 3 to 63 lower-case letters, digits, '-' or '.', beginning and ending with a letter or digit", name)}
}

func validBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (c != '-' && c != '.' || i == 0 || i == len(name)-1) {
			return false
		}
	}
	return true
}
