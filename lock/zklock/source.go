package zklock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// DefaultMaxTTL is the longest lease unless [Config] says otherwise. Its session fits the servers' default limit.
	DefaultMaxTTL = 25 * time.Second
	// MinTTL is the shortest lease, as of every source.
	MinTTL = 300 * time.Millisecond
	// DefaultPrefix is the root node unless [Config] says otherwise.
	DefaultPrefix = "/fencegate"
)

// Config configures a [Source]. [New] validates it.
type Config struct {
	// Servers lists the ensemble's servers, as host:port, ZooKeeper 3.5 or later. Required.
	Servers []string
	// Prefix is the root node. Sources with the same prefix form one group. Defaults to [DefaultPrefix].
	Prefix string
	// Digest is user:password; only this user may then access the nodes. Defaults to "": anyone may.
	Digest string
	// Armer raises the fence before a lease is given. Defaults to nil: there is none.
	Armer leasing.Armer
	// MaxTTL is the longest lease. The session lives half as long again, which the servers' maxSessionTimeout must
	// allow. Defaults to [DefaultMaxTTL].
	MaxTTL time.Duration
	// Holder names this process if a request does not. Defaults to host name and process id.
	Holder string
	// Logger logs what no caller receives as an error. Defaults to discarding it.
	Logger *slog.Logger
}

// Source provides the leases of one prefix, over one session. It is safe for concurrent use.
type Source struct {
	common *leases.Source
	store  *store
}

var _ leasing.AllSource = (*Source)(nil)

// New returns a Source, which connects in the background. The error is a [*fence.InvalidError].
func New(cfg Config) (*Source, error) {
	cfg.Prefix = strings.TrimSuffix(cmp.Or(cfg.Prefix, DefaultPrefix), "/")
	cfg.MaxTTL = cmp.Or(cfg.MaxTTL, DefaultMaxTTL)
	switch {
	case len(cfg.Servers) == 0:
		return nil, &fence.InvalidError{Field: "servers", Reason: "are missing"}
	case !strings.HasPrefix(cfg.Prefix, "/") || strings.Count(cfg.Prefix, "/") != 1 || strings.ContainsRune(cfg.Prefix, 0):
		return nil, &fence.InvalidError{Field: "prefix", Reason: fmt.Sprintf("is %q; it is one node, such as %s", cfg.Prefix, DefaultPrefix)}
	case cfg.Digest != "" && !strings.Contains(cfg.Digest, ":"):
		return nil, &fence.InvalidError{Field: "digest", Reason: "is not user:password"}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	st := &store{prefix: cfg.Prefix, logger: cfg.Logger, holds: make(map[string]*hold)}
	common, err := leases.New(leases.Config{
		Store: st, Armer: cfg.Armer, MinTTL: MinTTL, MaxTTL: cfg.MaxTTL, Holder: cfg.Holder, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	st.inBackground = common.InBackground
	if st.session, err = open(cfg.Servers, cfg.MaxTTL*3/2, cfg.Digest); err != nil {
		return nil, &fence.InvalidError{Field: "servers", Reason: err.Error()}
	}
	return &Source{common: common, store: st}, nil
}

// TryAcquire takes the lease of a resource if it is free, even if others wait for it.
func (s *Source) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.common.TryAcquire(ctx, r)
}

// Acquire takes the lease of a resource. It waits while another holds it, and while
// ZooKeeper is unavailable, until ctx ends. Callers of this Source are served in the
// order in which they asked. The first of them queues with those of other processes.
func (s *Source) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.common.Acquire(ctx, r)
}

// TryAcquireAll takes the leases if all of them are free.
func (s *Source) TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.common.TryAcquireAll(ctx, all)
}

// AcquireAll waits while others hold some of them.
func (s *Source) AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.common.AcquireAll(ctx, all)
}

// Extend gives a lease a new time to live, counted from now.
func (s *Source) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	return s.common.Extend(ctx, ref, ttl)
}

// Release ends the grant in the fence and frees the resource, even if ctx has ended.
func (s *Source) Release(ctx context.Context, ref leasing.Ref) error {
	return s.common.Release(ctx, ref)
}

// Inspect reports who holds a resource.
func (s *Source) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	return s.common.Inspect(ctx, resource)
}

// Ready reports whether leases are available.
func (s *Source) Ready(ctx context.Context) error { return s.common.Ready(ctx) }

// RaiseTokens makes every later token of the prefix exceed above. Call it after the ensemble was restored from an older
// state and there is no Armer. It never lowers tokens.
func (s *Source) RaiseTokens(ctx context.Context, above fence.Token) error {
	return s.common.RaiseTokens(ctx, above)
}

// Close ends all waits and leaves the queues, within a few seconds. Held leases stay held until they expire.
func (s *Source) Close() error { return s.common.Close() }
