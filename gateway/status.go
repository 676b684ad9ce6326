package gateway

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/gateway/leases"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/primary"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
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

// status reads the status of the gateway, without the results of its checks.
type status struct {
	version    string
	began      time.Time
	bestEffort bool
	ofPostgres bool // PostgreSQL grants the leases
	keys       *credentials.Keyring
	primary    *primary.Primary
	nodes      *leases.Nodes // nil: leases come from elsewhere
	ledger     *leases.Ledger
	pg         *pgwire.Server // nil: no PostgreSQL port
	s3         bool           // there is an S3 port
}

func (s status) read(ctx context.Context) wire.Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	all := wire.Status{
		Version: s.version, StartedAt: s.began, UptimeMS: time.Since(s.began).Milliseconds(), Postgres: wire.PostgresStatus{Identity: s.primary.Identity()},
		Lock: wire.LockStatus{Kind: "other", Nodes: s.nodes.Status(ctx), BestEffort: s.bestEffort}, HeldLeases: counted(s.ledger.Count()),
	}
	for id, fingerprint := range s.keys.Fingerprints() { // to compare the master keys between gateways
		all.Keys = append(all.Keys, wire.KeyStatus{ID: id, Fingerprint: fingerprint})
	}
	switch {
	case s.nodes != nil:
		all.Lock.Kind, all.Waiters = wire.PartRedis, counted(s.nodes.Waiters())
	case s.ofPostgres:
		all.Lock.Kind = wire.PartPostgres
	}
	if s.pg != nil {
		all.Sessions = counted(int(s.pg.Stats().Active))
	}
	if s.s3 {
		var n int64
		if s.primary.Pool().QueryRow(ctx, sqlObjects, maxCounted).Scan(&n) == nil {
			all.Objects = &n
		}
	}
	return all
}

func counted(n int) *int64 {
	c := int64(n)
	return &c
}
