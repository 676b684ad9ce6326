package gateway

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/wire"
)

// sqlObjects counts few objects exactly, and estimates many.
const (
	sqlObjects = `SELECT CASE WHEN few.n <= $1 THEN few.n ELSE greatest(few.n, c.reltuples::bigint) END
  FROM (SELECT count(*) AS n FROM (SELECT FROM objects.pointers LIMIT $1 + 1) p) few, pg_catalog.pg_class c
 WHERE c.oid = 'objects.pointers'::pg_catalog.regclass`
	maxCounted = 10000

	statusTimeout = time.Second
)

// status is the status of the gateway, without the results of its checks.
func (g *Gateway) status(ctx context.Context) wire.Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	all := wire.Status{
		Version: g.cfg.Version, StartedAt: g.began, UptimeMS: time.Since(g.began).Milliseconds(), Postgres: wire.PostgresStatus{Identity: g.servers.identity()},
		Lock: wire.LockStatus{Kind: "other", Nodes: g.nodes(ctx), BestEffort: g.cfg.BestEffort}, HeldLeases: counted(g.held.count()),
		Keys: g.parsed.fingerprints(),
	}
	switch {
	case g.ofRedis():
		all.Lock.Kind, all.Waiters = wire.PartRedis, counted(g.locker.Waiters())
	case g.cfg.PostgresLeases:
		all.Lock.Kind = wire.PartPostgres
	}
	if g.pg != nil {
		all.Sessions = counted(int(g.pg.Stats().Active))
	}
	if g.s3 != nil {
		var n int64
		if g.pool.QueryRow(ctx, sqlObjects, maxCounted).Scan(&n) == nil {
			all.Objects = &n
		}
	}
	return all
}

// fingerprints identify the master keys, to compare them between gateways.
func (p parsed) fingerprints() []wire.KeyStatus {
	var all []wire.KeyStatus
	for id, fingerprint := range p.keyring.Fingerprints() {
		all = append(all, wire.KeyStatus{ID: id, Fingerprint: fingerprint})
	}
	return all
}

func counted(n int) *int64 {
	c := int64(n)
	return &c
}

// identity identifies the accepted PostgreSQL; "": in doubt, or without a history.
func (s *servers) identity() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted == nil {
		return ""
	}
	return s.accepted.Identity
}
