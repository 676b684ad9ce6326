package etcdlock

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// DefaultMaxTTL is the longest lease unless [Config] says otherwise.
	DefaultMaxTTL = 5 * time.Minute
	// MinTTL is the shortest. A key lives for one to two seconds longer than the lease of a holder that died.
	MinTTL = 50 * time.Millisecond
	// DefaultPrefix comes before every key unless [Config] says otherwise.
	DefaultPrefix = "fencegate"
)

// Config says where the leases are. It is validated once, by [New].
type Config struct {
	// Client leads to the cluster, etcd 3.4 or later. It stays the caller's, who closes it after the [Source]. Its user needs
	// readwrite on the prefix. Required.
	Client *clientv3.Client
	// Prefix comes before every key, with a slash. Sources with the same prefix are of one group. Defaults to [DefaultPrefix].
	Prefix string
	// Armer raises the fence before a lease is given. Defaults to nil: there is none.
	Armer leasing.Armer
	// MaxTTL is the longest lease. Defaults to [DefaultMaxTTL].
	MaxTTL time.Duration
	// Holder names this process for people where a request does not. Defaults to host name and process id.
	Holder string
	// Logger receives what no caller is told. Defaults to discarding it.
	Logger *slog.Logger
}

// Source gives the leases of one prefix. It is safe for concurrent use.
type Source struct {
	common *leases.Source
	store  *store
}

var _ leasing.AllSource = (*Source)(nil)

// New makes a Source. It connects when it is used. The error is a [*fence.InvalidError].
func New(cfg Config) (*Source, error) {
	cfg.Prefix = strings.TrimSuffix(cmp.Or(cfg.Prefix, DefaultPrefix), "/")
	switch {
	case cfg.Client == nil:
		return nil, &fence.InvalidError{Field: "client", Reason: "is missing"}
	case cfg.Prefix == "" || strings.ContainsRune(cfg.Prefix, 0):
		return nil, &fence.InvalidError{Field: "prefix", Reason: "is empty or contains a zero byte"}
	}
	st := newStore(cfg.Client, cfg.Prefix)
	common, err := leases.New(leases.Config{
		Store: st, Armer: cfg.Armer, MinTTL: MinTTL, MaxTTL: cmp.Or(cfg.MaxTTL, DefaultMaxTTL), Holder: cfg.Holder, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	st.inBackground = common.InBackground
	return &Source{common: common, store: st}, nil
}

// TryAcquire takes the lease of a resource if nobody holds it, also where others wait for it.
func (s *Source) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.common.TryAcquire(ctx, r)
}

// Acquire takes the lease of a resource, waiting while another holds it and while etcd is away, until ctx ends. Callers of
// this Source are served in the order in which they asked; the first of them stands in a line with those of other processes.
func (s *Source) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.common.Acquire(ctx, r)
}

// TryAcquireAll takes the leases if nobody holds any of them.
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

// Release has the fence end the grant and frees the resource, also where ctx has ended.
func (s *Source) Release(ctx context.Context, ref leasing.Ref) error {
	return s.common.Release(ctx, ref)
}

// Inspect says who holds a resource.
func (s *Source) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	return s.common.Inspect(ctx, resource)
}

// Ready reports whether leases can be had.
func (s *Source) Ready(ctx context.Context) error { return s.common.Ready(ctx) }

// RaiseTokens has every later token of the prefix exceed one: for a cluster that was restored from an older snapshot, where
// no Armer sees to it. It never lowers anything.
func (s *Source) RaiseTokens(ctx context.Context, above fence.Token) error {
	return s.common.RaiseTokens(ctx, above)
}

// Close gives up waiting callers, and takes their places out of the line; that is bounded by a few seconds. Leases that are
// held stay held until they end.
func (s *Source) Close() error { return s.common.Close() }
