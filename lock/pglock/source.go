package pglock

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// DefaultMaxTTL is the longest lease unless [Config] says otherwise.
const DefaultMaxTTL = 5 * time.Minute

// Config configures a [Source]. [New] validates it.
type Config struct {
	// Pool connects to the database with a login in the role fence_locker or fence_gateway, whose transactions are READ
	// COMMITTED and may write. The caller owns it, and closes it after the [Source]. With a synchronous standby, its
	// configuration must have been passed to [pgfence.Configure]. While callers wait, the Source opens one more
	// connection with the same configuration to listen. Required.
	Pool *pgxpool.Pool
	// Armed is called with each token to which PostgreSQL's fence was raised. Defaults to nil.
	Armed func(resource string, token fence.Token)
	// OnAccepted calls take, which raises fences, if PostgreSQL is the accepted server, and returns take's error.
	// Otherwise it returns an error of its own. Defaults to nil: only the database's own record is checked.
	OnAccepted func(ctx context.Context, take func() error) error
	// MaxTTL is the longest lease. Defaults to [DefaultMaxTTL].
	MaxTTL time.Duration
	// Holder names this process if a request does not. Defaults to host name and process id.
	Holder string
	// Logger logs what no caller receives as an error. Defaults to discarding it.
	Logger *slog.Logger
	// Metrics receives events. Defaults to nil: none.
	Metrics leasing.Metrics

	clock        *clock.Clock  // of tests
	closeTimeout time.Duration // of tests
}

// Source provides the leases of one database. It is a [leasing.Source], safe for concurrent use.
type Source struct {
	*leases.Source

	store *store
}

var _ leasing.Source = (*Source)(nil)

// Validate checks the configuration as [New] does. The error is a [*fence.InvalidError].
func (c Config) Validate() error {
	_, err := New(c)
	return err
}

// New returns a Source, which connects on first use. The error is a [*fence.InvalidError].
func New(cfg Config) (*Source, error) {
	if cfg.Pool == nil {
		return nil, &fence.InvalidError{Field: "pool", Reason: "is missing"}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.OnAccepted == nil {
		cfg.OnAccepted = func(_ context.Context, take func() error) error { return take() }
	}
	if cfg.Armed == nil {
		cfg.Armed = func(string, fence.Token) {}
	}
	s := &store{cfg: cfg, id: strings.ToLower(rand.Text())}
	s.takes = groups.Groups[*attempt]{Settle: s.takeGroup, Key: func(a *attempt) string { return a.r.Resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	s.extends = groups.Groups[*extension]{Settle: s.extendGroup, Key: func(e *extension) string { return e.ref.Resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	s.frees = groups.Groups[*freeing]{Settle: s.freeGroup, Key: func(f *freeing) string { return f.ref.Resource }, Timeout: groups.Timeout, Pace: groups.Pace}
	source, env, err := leases.New(leases.Config{
		Store: s, MinTTL: leasing.MinTTL, MaxTTL: cmp.Or(cfg.MaxTTL, DefaultMaxTTL), Holder: cfg.Holder, Logger: cfg.Logger, Metrics: cfg.Metrics, Clock: cfg.clock, CloseTimeout: cfg.closeTimeout,
	})
	if err != nil {
		return nil, err
	}
	s.env = env
	return &Source{source, s}, nil
}
