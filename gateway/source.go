package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/pglock"
)

// openSource opens the source of leases: the configured one, PostgreSQL, or the Redis nodes. The rest of the gateway
// does not depend on which.
func (g *Gateway) openSource() (err error) {
	cfg, armer := g.cfg, g.armer()
	if cfg.PostgresLeases {
		leases, err := pglock.New(pglock.Config{Pool: g.pool, Armed: g.armed, OnAccepted: armer.when, MaxTTL: cfg.MaxTTL, Logger: g.log})
		if err != nil {
			return err
		}
		g.source = g.guarded(ofPostgres{leases, g.leasing})
		return nil
	}
	if cfg.Leases != nil {
		source, err := cfg.Leases(armer)
		if source != nil {
			g.source = g.guarded(source)
		}
		return err
	}
	g.leasing.Watch(&g.watched)
	if cfg.DatabaseKeys {
		g.keyed = &keyed{}
		g.source = g.guarded(g.keyed)
		return nil
	}
	locker, err := g.newLocker(cfg.KeyPrefix)
	if err == nil {
		g.source = g.guarded(locker.Source())
	}
	return err
}

// newLocker creates the locker of the Redis nodes.
func (g *Gateway) newLocker(prefix string) (*lock.Locker, error) {
	locker, err := lock.New(g.lockerOf(prefix))
	if err != nil {
		return nil, err
	}
	g.admit = func(ctx context.Context) error { return locker.Init(ctx) }
	g.watched.locker.Store(locker)
	return locker, nil
}

func (g *Gateway) lockerOf(prefix string) lock.Config {
	cfg := g.cfg.locker()
	cfg.Armer, cfg.Epochs, cfg.KeyPrefix, cfg.Logger, cfg.Metrics = g.armer(), g.fence, prefix, g.log, g.leasing
	return cfg
}

// locker is the locker's part of the configuration.
func (c Config) locker() lock.Config {
	return lock.Config{
		Nodes: c.RedisNodes, Armer: continuityArmer{}, MaxTTL: c.MaxTTL, DefaultTTL: c.DefaultTTL, NodeTimeout: c.NodeTimeout,
		KeyPrefix: c.KeyPrefix, Embedded: c.EmbeddedNodes, BestEffort: c.BestEffort,
	}
}

func (g *Gateway) armer() continuityArmer {
	return continuityArmer{measuredArmer{announcingArmer{g.fence, g.overtakes, g.held.arm}, g.arms}, g.servers}
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

func (g *Gateway) guarded(source leasing.Source) guarded {
	g.leasing.WatchHeld(g.held.count)
	g.leasing.WatchHeldByPrefix(g.parsed.prefixes, g.held.each)
	return guarded{Source: source, fence: g.fence, servers: g.servers, log: g.log, held: g.held, returns: &returns{look: g.watched.Returns}}
}

// TryAcquire notes the lease as held.
func (g guarded) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	if err := g.servers.may(ctx); err != nil {
		return leasing.Lease{}, err
	}
	lease, err := g.Source.TryAcquire(ctx, r)
	g.note(err, lease)
	return lease, g.named(ctx, err)
}

// Acquire waits for the lease and notes it as held.
func (g guarded) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	if err := g.servers.may(ctx); err != nil {
		return leasing.Lease{}, err
	}
	lease, err := g.Source.Acquire(ctx, r)
	g.note(err, lease)
	return lease, g.named(ctx, err)
}

// Ready adds the remaining quarantine to the error.
func (g guarded) Ready(ctx context.Context) error { return g.named(ctx, g.Source.Ready(ctx)) }

// Degraded describes what is missing of the source, if it can tell.
func (g guarded) Degraded(ctx context.Context) string {
	if several, ok := g.Source.(leasing.Redundant); ok {
		return several.Degraded(ctx)
	}
	return ""
}

var _ leasing.Surveyor = guarded{}

// inspectsAtOnce is how many resources of a page are inspected at a time if the source has no single question for them.
const inspectsAtOnce = 16

// InspectAll inspects one by one if the source cannot do so in one round.
func (g guarded) InspectAll(ctx context.Context, resources []string) ([]leasing.Inspection, error) {
	if one, ok := g.Source.(leasing.Surveyor); ok {
		return one.InspectAll(ctx, resources)
	}
	all := make([]leasing.Inspection, len(resources))
	var group errgroup.Group
	group.SetLimit(inspectsAtOnce)
	for i, resource := range resources {
		group.Go(func() (err error) {
			if err = ctx.Err(); err == nil {
				all[i], err = g.Inspect(ctx, resource)
			}
			return err
		})
	}
	return all, group.Wait()
}

func (g guarded) note(err error, leases ...leasing.Lease) {
	for _, lease := range leases {
		if err == nil {
			g.held.note(lease.Ref(), lease.Deadline)
		}
	}
}

// Release ends a lease.
func (g guarded) Release(ctx context.Context, ref leasing.Ref) error {
	g.held.drop(ref)
	return g.Source.Release(ctx, ref)
}

var _ leasing.AllSource = guarded{}

// TryAcquireAll fails with errors.ErrUnsupported if the source is no [leasing.AllSource]; so does AcquireAll.
func (g guarded) TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	if err := g.servers.may(ctx); err != nil {
		return nil, err
	}
	if several, ok := g.Source.(leasing.AllSource); ok {
		leases, err := several.TryAcquireAll(ctx, all)
		g.note(err, leases...)
		return leases, g.named(ctx, err)
	}
	return nil, errors.ErrUnsupported
}

// AcquireAll waits for the leases that others hold.
func (g guarded) AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	if err := g.servers.may(ctx); err != nil {
		return nil, err
	}
	if several, ok := g.Source.(leasing.AllSource); ok {
		leases, err := several.AcquireAll(ctx, all)
		g.note(err, leases...)
		return leases, g.named(ctx, err)
	}
	return nil, errors.ErrUnsupported
}

// Extend fails with [leasing.ErrLost] also if the fence is known to be above the lease's token, or to have ended its
// grant.
func (g guarded) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	overtaken := make(chan bool, 1)
	go func() { overtaken <- g.overtaken(ctx, ref) }()
	valid, err := g.Source.Extend(ctx, ref, ttl)
	end := time.Now().Add(valid)
	switch {
	case err == nil:
		g.held.note(ref, end)
	case errors.Is(err, leasing.ErrLost):
		g.held.drop(ref)
	}
	if <-overtaken && ctx.Err() == nil {
		if err == nil { // others need not wait for its end
			if err := g.Release(ctx, ref); err != nil && !errors.Is(err, leasing.ErrLost) {
				g.log.Warn("failed to release the lock of a revoked lease; it expires at its TTL", "resource", ref.Resource, "token", ref.Token, "error", err)
			}
		}
		return 0, fmt.Errorf("%w: the fence of %q is above its token %d, or has ended its grant", leasing.ErrLost, ref.Resource, ref.Token)
	}
	return time.Until(end), err
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
