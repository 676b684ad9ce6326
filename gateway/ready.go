package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/gateway/primary"
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

const (
	// readyFor is how long scrapes share the result of a readiness check.
	readyFor = 5 * time.Second
	// uncoveredFor is how long scrapes share the count of uncovered tables, which reads the catalog.
	uncoveredFor = time.Minute
)

// readiness checks what the ports need.
type readiness struct {
	pool       *pgxpool.Pool
	login      string // of the pool
	primary    *primary.Primary
	source     leasing.Source
	bestEffort bool
	sql        *fencedsql.Runner // nil: no /v1/sql
	pg, s3     bool              // there is such a port
}

// needs are the conditions of readiness.
func (r readiness) needs() []need {
	needs := []need{
		{Check: api.Check{Part: wire.PartPostgres, Run: r.checkPostgres}},
		{Check: api.Check{Part: r.primary.Part(), Run: r.checkLeases, Leases: true, Note: r.note()}, only: leasesOnly},
		{Check: api.Check{Part: wire.PartPostgres, Run: r.checkContinuity}, only: leasesOnly}, // asks the nodes again
	}
	if r.sql != nil {
		needs = append(needs, need{Check: api.Check{Part: wire.PartPostgres, Run: r.checkSQL}, only: wire.SurfaceSQL})
	}
	return needs
}

// checks are the checks of /readyz.
func (r readiness) checks() (checks []api.Check) {
	for _, n := range r.needs() {
		n.For = n.surfaces()
		checks = append(checks, n.Check)
	}
	return append(checks, api.Check{Part: wire.PartPostgres, Run: r.confirmed, For: []string{wire.SurfacePG, wire.SurfaceSQL, wire.SurfaceS3}})
}

// surfaces are the surfaces of this gateway, for /readyz.
func (r readiness) surfaces() []string {
	all := []string{wire.SurfaceLease}
	for surface, on := range map[string]bool{wire.SurfacePG: r.pg, wire.SurfaceS3: r.s3, wire.SurfaceSQL: r.sql != nil} {
		if on {
			all = append(all, surface)
		}
	}
	return all
}

// confirmed checks PostgreSQL as writes do: without a doubt no node has to answer.
func (r readiness) confirmed(ctx context.Context) error {
	_, err := r.primary.Confirm(ctx)
	return err
}

// checkSQL checks the login of /v1/sql. Its failure affects only that path. A principal with the right sql can cause
// it, because a role may change its own password.
func (r readiness) checkSQL(ctx context.Context) error {
	err := r.sql.Check(ctx)
	if errors.Is(err, fencedsql.ErrLogin) {
		return &api.DegradedError{What: "/v1/sql can't serve: its login to PostgreSQL fails", Cause: err}
	}
	return err
}

// note is the public description of the source of leases, also while it is healthy.
func (r readiness) note() string {
	if r.bestEffort {
		return "best effort: after the loss of a node two may hold a resource, and the fence lets only the newest write"
	}
	return ""
}

// checkLeases checks the source of leases. Something may be missing of one that serves.
func (r readiness) checkLeases(ctx context.Context) error {
	degraded, err := r.source.Ready(ctx)
	if err == nil && degraded != "" {
		return &api.DegradedError{What: degraded}
	}
	return err
}

func (r readiness) checkPostgres(ctx context.Context) error {
	var migrated, mayArm, standby, plain bool
	if err := r.pool.QueryRow(ctx, sqlReady).Scan(&migrated, &mayArm, &standby, &plain); err != nil {
		return fmt.Errorf("gateway login: %w", err)
	}
	switch {
	case !migrated:
		return errors.New("the database has no fence; run: fencegate migrate up")
	case !mayArm:
		return fmt.Errorf("the gateway's login is not in fence_gateway; grant it: GRANT fence_gateway TO %s", pgx.Identifier{r.login}.Sanitize())
	case standby:
		return errors.New("the database is a read-only standby")
	case !plain: // reading it could run another role's code
		return errors.New("the table fencegate.code was not created by the migrations; see: fencegate migrate status")
	}
	var oldest int
	err := r.pool.QueryRow(ctx, sqlMinProgram, r.s3).Scan(&oldest)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && (refused.Code == "42P01" || refused.Code == "3F000" || refused.Code == "42501") {
		return nil // no such record, or not readable for this login: a dump without it
	}
	if err == nil && oldest > migrations.Program {
		err = fmt.Errorf("the database's schema needs a program of generation %d, and this one is of %d: use a newer program", oldest, migrations.Program)
	}
	return err
}

// checkContinuity reports whether PostgreSQL may have forgotten fences, or has another source of leases.
func (r readiness) checkContinuity(ctx context.Context) error {
	if err := r.primary.Claim(ctx); err != nil {
		return err
	}
	return r.primary.Check(ctx)
}

// ports returns 1 for each port that can serve, else 0; leaving reports whether the gateway stops.
func (r readiness) ports(ctx context.Context, leaving func() bool) map[string]float64 {
	needs := append(r.needs(), need{Check: api.Check{Part: wire.PartPostgres, Run: r.confirmed}})
	found := make([]error, len(needs))
	var running sync.WaitGroup
	for i, c := range needs {
		running.Go(func() { found[i] = c.Run(ctx) })
	}
	running.Wait()
	ready := make(map[string]float64)
	for _, surface := range r.surfaces() {
		ready[surface] = 1
	}
	for surface := range ready {
		for i, need := range needs {
			if need.hinders(surface, found[i]) || leaving() {
				ready[surface] = 0
			}
		}
	}
	return ready
}

const sqlCountUncovered = `SELECT count(DISTINCT relation) FROM fence.uncovered`

// uncovered counts the tables that should be guarded and can be written unfenced.
func (r readiness) uncovered(ctx context.Context) map[string]float64 {
	var tables float64
	if err := r.pool.QueryRow(ctx, sqlCountUncovered).Scan(&tables); err != nil {
		return nil // /readyz reports the error
	}
	return map[string]float64{"": tables}
}
