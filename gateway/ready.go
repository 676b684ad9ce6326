package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/migrations"
	"github.com/fencegate/fencegate/wire"
)

// sqlReady checks the fence's migrations, the login's right to arm, and that the server takes writes. pg_has_role fails
// for a role that does not exist.
const sqlReady = `SELECT to_regclass('fence.resources') IS NOT NULL,
       COALESCE((SELECT pg_has_role(oid, 'USAGE') FROM pg_roles WHERE rolname = 'fence_gateway'), false),
       pg_is_in_recovery(),
       NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = to_regclass('fencegate.code')
                      AND (c.relkind <> 'r' OR c.relhasrules OR c.relrowsecurity OR c.relhassubclass
                        OR EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))))`

// sqlMinProgram selects the oldest program generation that the SQL code of the sets in use serves.
const sqlMinProgram = `SELECT COALESCE(max(min_program), 0) FROM fencegate.code WHERE name = 'fence' OR $1`

// need is a condition of readiness. The API grants leases, so it needs all conditions. The other ports serve holders of
// a lease even while no new lease can be granted.
type need struct {
	api.Check

	only string // the only other port that needs it; "": all of them
}

// leasesOnly names no port: only the API needs the condition.
const leasesOnly = wire.SurfaceLease

// surfaces are the surfaces of /readyz that need it; nil: all.
func (n need) surfaces() []string {
	switch n.only {
	case "":
		return nil
	case leasesOnly:
		return []string{wire.SurfaceLease}
	}
	return []string{wire.SurfaceLease, n.only}
}

// hinders reports whether a failed check keeps a port from serving. The API stays ready if the failure only degrades
// it.
func (n need) hinders(surface string, found error) bool {
	_, degraded := errors.AsType[*api.DegradedError](found)
	return found != nil && (surface == wire.SurfaceLease && !degraded || n.only == "" || n.only == surface)
}

// needs are the conditions of readiness.
func (g *Gateway) needs() []need {
	needs := []need{
		{Check: api.Check{Part: wire.PartPostgres, Run: g.checkPostgres}},
		{Check: api.Check{Part: g.servers.part, Run: g.checkLeases, Leases: true, Note: g.note()}, only: leasesOnly},
		{Check: api.Check{Part: wire.PartPostgres, Run: g.checkContinuity}, only: leasesOnly}, // asks the nodes anew
	}
	if g.sql != nil {
		needs = append(needs, need{Check: api.Check{Part: wire.PartPostgres, Run: g.checkSQL}, only: wire.SurfaceSQL})
	}
	return needs
}

// checks are the checks of /readyz.
func (g *Gateway) checks() (checks []api.Check) {
	for _, n := range g.needs() {
		n.For = n.surfaces()
		checks = append(checks, n.Check)
	}
	return append(checks, api.Check{Part: wire.PartPostgres, Run: g.confirmed, For: []string{wire.SurfacePG, wire.SurfaceSQL, wire.SurfaceS3}})
}

// surfaces are the surfaces of this gateway, for /readyz.
func (g *Gateway) surfaces() []string {
	all := []string{wire.SurfaceLease}
	for surface, on := range map[string]bool{wire.SurfacePG: g.pg != nil, wire.SurfaceS3: g.s3 != nil, wire.SurfaceSQL: g.sql != nil} {
		if on {
			all = append(all, surface)
		}
	}
	return all
}

// confirmed checks PostgreSQL as writes do: without a doubt no node has to answer.
func (g *Gateway) confirmed(ctx context.Context) error {
	_, err := g.servers.confirm(ctx)
	return err
}

// checkSQL checks the login of /v1/sql. Its failure affects only that path. A principal with the right sql can cause
// it, because a role may change its own password.
func (g *Gateway) checkSQL(ctx context.Context) error {
	err := g.sql.Check(ctx)
	if errors.Is(err, fencedsql.ErrLogin) {
		return &api.DegradedError{What: "/v1/sql can't serve: its login to PostgreSQL fails", Cause: err}
	}
	return err
}

// note is the public description of the source of leases, also while it is healthy.
func (g *Gateway) note() string {
	if g.cfg.BestEffort {
		return "best effort: after the loss of a node two may hold a resource, and the fence lets only the newest write"
	}
	return ""
}

// checkLeases checks the source of leases. Something may be missing of one that serves.
func (g *Gateway) checkLeases(ctx context.Context) error {
	degraded, err := g.source.Ready(ctx)
	if err == nil && degraded != "" {
		return &api.DegradedError{What: degraded}
	}
	return err
}

func (g *Gateway) checkPostgres(ctx context.Context) error {
	var migrated, mayArm, standby, plain bool
	if err := g.pool.QueryRow(ctx, sqlReady).Scan(&migrated, &mayArm, &standby, &plain); err != nil {
		return fmt.Errorf("gateway login: %w", err)
	}
	switch {
	case !migrated:
		return errors.New("the database has no fence; run: fencegate migrate up")
	case !mayArm:
		return fmt.Errorf("the gateway's login is not in fence_gateway; grant it: GRANT fence_gateway TO %s", pgx.Identifier{g.parsed.pool.ConnConfig.User}.Sanitize())
	case standby:
		return errors.New("the database is a read-only standby")
	case !plain: // reading it could run another role's code
		return errors.New("the table fencegate.code was not created by the migrations; see: fencegate migrate status")
	}
	var oldest int
	err := g.pool.QueryRow(ctx, sqlMinProgram, g.s3 != nil).Scan(&oldest)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && (refused.Code == "42P01" || refused.Code == "3F000" || refused.Code == "42501") {
		return nil // no such record, or not readable for this login: a dump without it
	}
	if err == nil && oldest > migrations.Program {
		err = fmt.Errorf("the database's schema needs a program of generation %d, and this one is of %d: use a newer program", oldest, migrations.Program)
	}
	return err
}

// checkContinuity reports whether PostgreSQL may have forgotten fences, or has another source of leases.
func (g *Gateway) checkContinuity(ctx context.Context) error {
	if err := g.servers.claim(ctx); err != nil {
		return err
	}
	return g.servers.check(ctx)
}
