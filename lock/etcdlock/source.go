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
	// MinTTL is the shortest lease, as of every source. If a holder dies, its key lives one to two seconds longer than
	// its lease.
	MinTTL = 300 * time.Millisecond
	// DefaultPrefix is the prefix of every key unless [Config] says otherwise.
	DefaultPrefix = "fencegate"
)

// Config configures a [Source]. [New] validates it.
type Config struct {
	// Client connects to the cluster, etcd 3.4 or later. The caller owns it, and closes it after the [Source]. Its user
	// needs readwrite on the prefix. Required.
	Client *clientv3.Client
	// Prefix is the prefix of every key, followed by a slash. Sources
	// with the same prefix form one group. Defaults to [DefaultPrefix].
	Prefix string
	// Armer raises the fence before a lease is given. Defaults to nil: there is none.
	Armer leasing.Armer
	// MaxTTL is the longest lease. Defaults to [DefaultMaxTTL].
	MaxTTL time.Duration
	// Holder names this process if a request does not. Defaults to host name and process id.
	Holder string
	// Logger logs what no caller receives as an error. Defaults to discarding it.
	Logger *slog.Logger
}

// Source provides the leases of one prefix. It is safe for concurrent use.
type Source struct {
	common *leases.Source
	store  *store
}

var _ leasing.AllSource = (*Source)(nil)

// New returns a Source, which connects on first use. The error is a [*fence.InvalidError].
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

// TryAcquire takes the lease of a resource if it is free, even if others wait for it.
func (s *Source) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.common.TryAcquire(ctx, r)
}

// Acquire takes the lease of a resource. It waits while another holds it, and while
// etcd is unavailable, until ctx ends. Callers of this Source are served in the
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

// RaiseTokens makes every later token of the prefix exceed above. Call it after the cluster was restored from an older
// snapshot and there is no Armer. It never lowers tokens.
func (s *Source) RaiseTokens(ctx context.Context, above fence.Token) error {
	return s.common.RaiseTokens(ctx, above)
}

// Close ends all waits and leaves the queues, within a few seconds. Held leases stay held until they expire.
func (s *Source) Close() error { return s.common.Close() }
