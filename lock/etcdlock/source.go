package etcdlock

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// DefaultMaxTTL is the longest lease unless [Config] says otherwise. If a holder dies, its key lives one to two
	// seconds longer than its lease.
	DefaultMaxTTL = 5 * time.Minute
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

	clock *clock.Clock // of tests
}

// Source provides the leases of one prefix. It is a [leasing.Source], safe for concurrent use.
type Source struct {
	*leases.Source

	store *store
}

var _ leasing.Source = (*Source)(nil)

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
	source, env, err := leases.New(leases.Config{
		Store: st, Armer: cfg.Armer, MinTTL: leasing.MinTTL, MaxTTL: cmp.Or(cfg.MaxTTL, DefaultMaxTTL), Holder: cfg.Holder, Logger: cfg.Logger, Clock: cfg.clock,
	})
	if err != nil {
		return nil, err
	}
	st.env, st.grants.clock = env, env.Clock
	return &Source{source, st}, nil
}

// RaiseTokens makes every later token of the prefix exceed above. Call it after the cluster was restored from an older
// snapshot and there is no Armer. It never lowers tokens.
func (s *Source) RaiseTokens(ctx context.Context, above fence.Token) error {
	return leases.RaiseTokens(ctx, s.Source, above)
}
