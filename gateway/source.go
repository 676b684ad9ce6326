package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/pglock"
)

// openSource opens the source of leases: the configured one, PostgreSQL, or the Redis nodes. The rest of the gateway
// does not depend on which.
func (g *Gateway) openSource() error {
	source, err := g.sourceOf(g.cfg)
	if source != nil {
		g.leasing.WatchHeld(g.held.count)
		g.leasing.WatchHeldByPrefix(g.parsed.prefixes, g.held.each)
		g.source = guarded{Source: source, fence: g.fence, servers: g.servers, log: g.log, held: g.held, returns: &returns{locker: g.locker}}
	}
	return err
}

func (g *Gateway) sourceOf(cfg Config) (leasing.Source, error) {
	switch {
	case cfg.PostgresLeases:
		return pglock.New(pglock.Config{
			Pool: g.pool, Armed: g.armed, OnAccepted: g.armer().when, MaxTTL: cfg.MaxTTL, Logger: g.log, Metrics: g.leasing,
		})
	case cfg.Leases != nil:
		return cfg.Leases(g.armer())
	}
	locker, err := lock.New(g.lockerOf())
	if err != nil {
		return nil, err
	}
	g.locker = locker
	g.leasing.Watch(locker)
	return locker.Source(), nil
}

func (g *Gateway) lockerOf() lock.Config {
	cfg := g.cfg.locker()
	cfg.Armer, cfg.Epochs, cfg.Logger, cfg.Metrics = g.armer(), g.fence, g.log, g.leasing
	if g.servers.keys != nil {
		cfg.KeyPrefix = g.servers.keys.prefix
	}
	return cfg
}

// locker is the locker's part of the configuration.
func (c Config) locker() lock.Config {
	return lock.Config{
		Nodes: c.RedisNodes, Armer: continuityArmer{}, MaxTTL: c.MaxTTL, DefaultTTL: c.DefaultTTL, NodeTimeout: c.NodeTimeout,
		KeyPrefix: lock.Prefix(c.KeyPrefix), Embedded: c.EmbeddedNodes, BestEffort: c.BestEffort,
	}
}

func (g *Gateway) armer() continuityArmer {
	return continuityArmer{armer{g.fence, g.arms, g.overtakes, g.held.arm}, g.servers}
}

// guarded is a source of leases that also asks the fence before it extends a lease, and that counts the held leases.
type guarded struct {
	leasing.Source

	fence   records
	servers *servers
	log     *slog.Logger
	held    *holdings
	returns *returns
}

// records is what guarded needs of the fence.
type records interface {
	Inspect(ctx context.Context, resource string) (fence.Record, error)
}

// Acquire notes the leases as held.
func (g guarded) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	if err := g.servers.may(ctx); err != nil {
		return nil, err
	}
	leases, err := g.Source.Acquire(ctx, wait, all...)
	for _, lease := range leases {
		g.held.note(lease.Ref(), lease.Deadline)
	}
	return leases, g.named(ctx, err)
}

// Ready adds the remaining quarantine to the error.
func (g guarded) Ready(ctx context.Context) (degraded string, err error) {
	degraded, err = g.Source.Ready(ctx)
	return degraded, g.named(ctx, err)
}

// Inspect names the part that did not answer in time.
func (g guarded) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	all, err := g.Source.Inspect(ctx, resources...)
	if err != nil && ctx.Err() != nil && !errors.Is(err, leasing.ErrUnavailable) {
		err = &leasing.UnavailableError{Part: g.servers.part, Cause: err}
	}
	return all, err
}

// Release ends a lease.
func (g guarded) Release(ctx context.Context, ref leasing.Ref) error {
	g.held.drop(ref)
	return g.Source.Release(ctx, ref)
}

// Extend fails with [leasing.ErrLost] also if the fence is known to be above the lease's token, or to have ended its
// grant.
func (g guarded) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	overtaken := make(chan bool, 1)
	go func() { overtaken <- g.overtaken(ctx, ref) }()
	deadline, err := g.Source.Extend(ctx, ref, ttl)
	switch {
	case err == nil:
		g.held.note(ref, deadline)
	case errors.Is(err, leasing.ErrLost):
		g.held.drop(ref)
	}
	if <-overtaken && ctx.Err() == nil {
		if err == nil { // others need not wait for its end
			if err := g.Release(ctx, ref); err != nil && !errors.Is(err, leasing.ErrLost) {
				g.log.Warn("failed to release the lock of a revoked lease; it expires at its TTL", "resource", ref.Resource, "token", ref.Token, "error", err)
			}
		}
		return clock.Instant{}, fmt.Errorf("%w: the fence of %q is above its token %d, or has ended its grant", leasing.ErrLost, ref.Resource, ref.Token)
	}
	return deadline, err
}

// fenceTimeout bounds how long an extension waits for the fence's answer. The extension continues without it:
// PostgreSQL may be away, and the fence guards the writes in any case.
const fenceTimeout = 500 * time.Millisecond

// overtaken reports whether the fence is known to be above the lease's token (revoked, or acquired by another), or to
// have ended its grant (released).
func (g guarded) overtaken(ctx context.Context, ref leasing.Ref) bool {
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	record, err := g.fence.Inspect(ctx, ref.Resource)
	return err == nil && (record.Token > ref.Token || record.Token == ref.Token && record.EndedAt != nil)
}
