// Package leases is the engine of the sources that keep each lease in one store: PostgreSQL, etcd, ZooKeeper. It
// validates requests, queues this process's callers, arms, takes several leases at once, renews while it waits, and
// gives back what a failed acquisition took.
//
// The guarantee: a [Source] over a [Store] whose tokens rise follows the rules of a [leasing.Source]. The deadline is the
// Store's, counted from before its first message. A lease whose deadline has passed while it was armed is not given.
package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/lifetime"
)

// Taken is a lease as the store gave it.
type Taken struct {
	Resource, Owner string
	Token           fence.Token
	Deadline        clock.Instant
}

func (t Taken) ref() leasing.Ref {
	return leasing.Ref{Resource: t.Resource, Owner: t.Owner, Token: t.Token}
}

// Store keeps the leases. It receives only valid requests, with a holder and a seal hash. It may arm by itself: then its
// source has no Armer.
type Store interface {
	// Take takes what is free. If it fails, it gives back by itself what it may have taken, or fails with a [*KeptError].
	Take(ctx context.Context, r leasing.Request) (Taken, error)
	// Wait takes the lease when it is this process's turn. It calls w.Waits with what it waits for.
	Wait(ctx context.Context, r leasing.Request, w *Waiter) (Taken, error)
	// Extend gives a lease a new time and returns its new deadline, or [leasing.ErrLost].
	Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error)
	// Free ends a lease, or fails with [leasing.ErrLost].
	Free(ctx context.Context, ref leasing.Ref) error
	// Raise makes every later token exceed above.
	Raise(ctx context.Context, above fence.Token) error
	Inspect(ctx context.Context, resources []string) ([]leasing.Inspection, error)
	Ready(ctx context.Context) error
	Close() error
}

// KeptError says that an acquisition of a [leasing.Request] that is Repeatable has failed, and that its lease, if there
// is one, was not given back: a repeat of the request in another process can tell from the caller's seal whose it is,
// extend it and return it. Only its TTL ends it, or GiveBack, in the background, where no repeat is served any more.
type KeptError struct {
	Err      error
	GiveBack func()
}

func (e *KeptError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *KeptError) Unwrap() error { return e.Err }

// Config configures a [Source].
type Config struct {
	Store          Store
	Armer          leasing.Armer // nil: none
	MinTTL, MaxTTL time.Duration
	Holder         string          // "": host name and process id
	Logger         *slog.Logger    // nil: discards
	Metrics        leasing.Metrics // nil: none
	Clock          *clock.Clock    // nil: this machine's
	CloseTimeout   time.Duration   // of Close; 0: two seconds
}

// Source provides the leases of a [Store].
type Source struct {
	cfg   Config
	lines Lines
	life  *lifetime.Lifetime
}

// closeTimeout bounds how long Close waits by default: callers leave their queues, and unused leases are given back.
const closeTimeout = 2 * time.Second

var _ leasing.Source = (*Source)(nil)

// Env is what a [Store] needs of its source.
type Env struct {
	Lines *Lines             // to call when it hears of a release
	Life  *lifetime.Lifetime // of its background work
	Clock *clock.Clock
}

// New returns a Source, and what its Store gets of it before the first call. The error is a [*fence.InvalidError].
func New(cfg Config) (*Source, Env, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = noMetrics{}
	}
	if cfg.Holder == "" {
		host, _ := os.Hostname()
		cfg.Holder = fmt.Sprintf("%s:%d", cmp.Or(host, "unknown"), os.Getpid())
	}
	if cfg.MaxTTL < cfg.MinTTL || cfg.MaxTTL > 24*time.Hour {
		return nil, Env{}, &fence.InvalidError{Field: "max ttl", Reason: fmt.Sprintf("is %v; allowed is %v to 24h", cfg.MaxTTL, cfg.MinTTL)}
	}
	if err := leasing.ValidateHolder(cfg.Holder); err != nil {
		return nil, Env{}, err
	}
	cfg.Clock = cmp.Or(cfg.Clock, clock.New())
	s := &Source{cfg: cfg, life: lifetime.New(cmp.Or(cfg.CloseTimeout, closeTimeout), leasing.ErrClosed)}
	return s, Env{Lines: &s.lines, Life: s.life, Clock: cfg.Clock}, nil
}

// Close ends all waits, and removes what they left in the service, if it answers. Held leases stay held until they
// expire.
func (s *Source) Close() error { return s.life.Close(s.cfg.Store.Close) }

// Good is a lease's deadline as its holder counts it: from before the first message, minus the margin for clock drift.
func Good(start clock.Instant, ttl time.Duration) clock.Instant {
	return start.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// Extend gives a lease a new time to live, counted from now.
func (s *Source) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	deadline, err := s.extend(ctx, ref, ttl)
	if err != nil {
		s.cfg.Metrics.Failed("extend", causeOf(err))
		return clock.Instant{}, err
	}
	s.cfg.Metrics.Renewed()
	return deadline, nil
}

func (s *Source) extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	if err := cmp.Or(ref.Validate(), leasing.ValidateTTL(ttl, s.cfg.MinTTL, s.cfg.MaxTTL)); err != nil {
		return clock.Instant{}, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return clock.Instant{}, err
	}
	defer cancel()
	deadline, err := s.cfg.Store.Extend(ctx, ref, ttl)
	if err == nil && deadline.Passed() {
		err = fmt.Errorf("extend %q: the TTL of %v ended before it was extended: %w", ref.Resource, ttl, leasing.ErrLost)
	}
	return deadline, err
}

const (
	// endTimeout bounds how long a release waits for the fence.
	endTimeout = 500 * time.Millisecond
	// freeTimeout bounds a release. The caller's context does not.
	freeTimeout = 10 * time.Second
)

// Release ends the grant in the fence, and then the lease, even if ctx has ended.
func (s *Source) Release(ctx context.Context, ref leasing.Ref) error {
	err := s.release(ctx, ref)
	if err != nil {
		s.cfg.Metrics.Failed("release", causeOf(err))
	}
	return err
}

func (s *Source) release(ctx context.Context, ref leasing.Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	ctx, cancel, err := s.life.Open(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer cancel()
	s.endGrant(ctx, ref)
	ctx, cancelTime := context.WithTimeout(ctx, freeTimeout)
	defer cancelTime()
	return s.cfg.Store.Free(ctx, ref)
}

func (s *Source) endGrant(ctx context.Context, ref leasing.Ref) {
	if s.cfg.Armer == nil || ref.Token <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	err := s.cfg.Armer.End(ctx, fence.Ending{Resource: ref.Resource, Token: ref.Token})
	if err != nil && !errors.Is(err, fence.ErrStale) {
		s.cfg.Logger.WarnContext(ctx, "the fence did not end the grant of a released lease; it stays current until the next acquisition",
			"resource", ref.Resource, "token", ref.Token, "error", err)
	}
}

// Inspect reports who holds each resource.
func (s *Source) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	for _, resource := range resources {
		if err := fence.ValidateResource(resource); err != nil {
			return nil, err
		}
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return s.cfg.Store.Inspect(ctx, resources)
}

// Ready reports whether leases are available. The store is one service, so nothing is missing of one that serves.
func (s *Source) Ready(ctx context.Context) (degraded string, err error) {
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return "", err
	}
	defer cancel()
	return "", s.cfg.Store.Ready(ctx)
}

// RaiseTokens makes every later token exceed above, of a source whose store has no fence of its own.
func RaiseTokens(ctx context.Context, s *Source, above fence.Token) error {
	if above <= 0 {
		return &fence.InvalidError{Field: "token", Reason: fmt.Sprintf("is %d; it must be positive", above)}
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.cfg.Store.Raise(ctx, above)
}

type noMetrics struct{}

func (noMetrics) Acquired(time.Duration, int) {}
func (noMetrics) Failed(string, string)       {}
func (noMetrics) Renewed()                    {}

// causeOf returns the metric label for an error.
func causeOf(err error) string {
	for _, c := range []struct {
		err  error
		name string
	}{
		{fence.ErrInvalid, "invalid"},
		{leasing.ErrClosed, "closed"},
		{leasing.ErrHeld, "held"},
		{leasing.ErrLost, "lost"},
		{context.Canceled, "cancelled"},
		{context.DeadlineExceeded, "deadline"},
		{leasing.ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}
