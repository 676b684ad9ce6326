package zklock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// DefaultMaxTTL is the longest lease unless [Config] says otherwise. Its session fits the servers' default limit.
	DefaultMaxTTL = 25 * time.Second
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

	clock *clock.Clock // of tests
}

// Source provides the leases of one prefix, over one session. It is a [leasing.Source], safe for concurrent use.
type Source struct {
	*leases.Source

	store *store
}

var _ leasing.Source = (*Source)(nil)

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
	source, env, err := leases.New(leases.Config{
		Store: st, Armer: cfg.Armer, MinTTL: leasing.MinTTL, MaxTTL: cfg.MaxTTL, Holder: cfg.Holder, Logger: cfg.Logger, Clock: cfg.clock,
	})
	if err != nil {
		return nil, err
	}
	st.env = env
	if st.session, err = open(cfg.Servers, cfg.MaxTTL*3/2, cfg.Digest); err != nil {
		return nil, &fence.InvalidError{Field: "servers", Reason: err.Error()}
	}
	return &Source{source, st}, nil
}

// RaiseTokens makes every later token of the prefix exceed above. Call it after the ensemble was restored from an older
// state and there is no Armer. It never lowers tokens.
func (s *Source) RaiseTokens(ctx context.Context, above fence.Token) error {
	return leases.RaiseTokens(ctx, s.Source, above)
}
