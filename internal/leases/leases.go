// Package leases is the common part of lease sources that keep one key for each resource in a coordination service:
// validating requests, queueing this process's callers, arming, several leases at once, and giving back what a failed
// acquisition took.
//
// The guarantee: a [Source] over a [Store] whose tokens rise follows the rules of a
// [leasing.AllSource]. The deadline is the Store's, counted from before its first
// message. A lease whose deadline has passed while it was armed is not given.
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
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/lifetime"
)

// Taken is a lease as the service gave it. Its fence is not armed yet.
type Taken struct {
	Resource, Owner string
	Token           fence.Token
	Deadline        time.Time
}

func (t Taken) ref() leasing.Ref {
	return leasing.Ref{Resource: t.Resource, Owner: t.Owner, Token: t.Token}
}

// Store keeps the leases. It receives only valid requests.
type Store interface {
	// Take takes what is free. If it fails, it gives back by itself what it may have taken.
	Take(ctx context.Context, r leasing.Request) (Taken, error)
	// Wait takes the lease when it is this process's turn. It calls why with what it waits for.
	Wait(ctx context.Context, r leasing.Request, why func(error)) (Taken, error)
	// Extend gives a lease a new time and returns its new deadline, or [leasing.ErrLost].
	Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Time, error)
	// Free ends a lease, or fails with [leasing.ErrLost].
	Free(ctx context.Context, ref leasing.Ref) error
	// Raise makes every later token exceed above.
	Raise(ctx context.Context, above fence.Token) error
	Inspect(ctx context.Context, resource string) (leasing.Inspection, error)
	Ready(ctx context.Context) error
	Close() error
}

// Config configures a [Source].
type Config struct {
	Store          Store
	Armer          leasing.Armer // nil: none
	MinTTL, MaxTTL time.Duration
	Holder         string // "": host name and process id
	Logger         *slog.Logger
}

// Source provides the leases of a [Store].
type Source struct {
	cfg   Config
	lines lines
	life  *lifetime.Lifetime
}

// closeTimeout bounds how long Close waits: callers leave their queues, and unused leases are given back.
const closeTimeout = 2 * time.Second

var _ leasing.AllSource = (*Source)(nil)

// New returns a Source. The error is a [*fence.InvalidError].
func New(cfg Config) (*Source, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Holder == "" {
		host, _ := os.Hostname()
		cfg.Holder = fmt.Sprintf("%s:%d", cmp.Or(host, "unknown"), os.Getpid())
	}
	if cfg.MaxTTL < cfg.MinTTL || cfg.MaxTTL > 24*time.Hour {
		return nil, &fence.InvalidError{Field: "max ttl", Reason: fmt.Sprintf("is %v; allowed is %v to 24h", cfg.MaxTTL, cfg.MinTTL)}
	}
	if err := validateHolder(cfg.Holder); err != nil {
		return nil, err
	}
	return &Source{cfg: cfg, life: lifetime.New(closeTimeout, leasing.ErrClosed)}, nil
}

// Close ends all waits, and removes what they left in the service, if it answers. Held leases stay held until they
// expire.
func (s *Source) Close() error { return s.life.Close(s.cfg.Store.Close) }

// InBackground runs f in a goroutine for which Close waits, with a context that ends shortly after Close was called. It
// does nothing once Close has waited for the callers.
func (s *Source) InBackground(f func(ctx context.Context)) { s.life.InBackground(f) }

// Extend gives a lease a new time to live, counted from now.
func (s *Source) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	if err := cmp.Or(validateRef(ref), s.validateTTL(ttl)); err != nil {
		return 0, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	deadline, err := s.cfg.Store.Extend(ctx, ref, ttl)
	if err != nil {
		return 0, err
	}
	left := time.Until(deadline)
	if left <= 0 {
		return 0, fmt.Errorf("extend %q: the TTL of %v ended before it was extended: %w", ref.Resource, ttl, leasing.ErrLost)
	}
	return left, nil
}

const (
	// endTimeout bounds how long a release waits for the fence.
	endTimeout = 500 * time.Millisecond
	// freeTimeout bounds a release. The caller's context does not.
	freeTimeout = 10 * time.Second
)

// Release ends the grant in the fence, and then the lease, even if ctx has ended.
func (s *Source) Release(ctx context.Context, ref leasing.Ref) error {
	if err := validateRef(ref); err != nil {
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
	ender, ok := s.cfg.Armer.(leasing.Ender)
	if !ok || ref.Token <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	err := ender.End(ctx, fence.Ending{Resource: ref.Resource, Token: ref.Token})
	if err != nil && !errors.Is(err, fence.ErrStale) {
		s.cfg.Logger.WarnContext(ctx, "the fence did not end the grant of a released lease; it stays current until the next acquisition",
			"resource", ref.Resource, "token", ref.Token, "error", err)
	}
}

// Inspect reports who holds a resource.
func (s *Source) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	if err := fence.ValidateResource(resource); err != nil {
		return leasing.Inspection{Resource: resource}, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return leasing.Inspection{Resource: resource}, err
	}
	defer cancel()
	return s.cfg.Store.Inspect(ctx, resource)
}

// Ready reports whether leases are available.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.cfg.Store.Ready(ctx)
}

// RaiseTokens makes every later token exceed above.
func (s *Source) RaiseTokens(ctx context.Context, above fence.Token) error {
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
