package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The functions are those of migrations/fence/code/leases.sql. Times are microseconds.
const (
	sqlTakeAll = `SELECT n, taken, held, token, holder, left_us FROM fence.take_leases($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::text[], $6::bigint[], $7::boolean[])`
	sqlTake    = `SELECT taken, token, holder, left_us FROM fence.take_lease($1::text, $2::text, $3::bigint, $4::bytea, $5::text, $6::bigint, $7::boolean, ` +
		`$8::bytea, $9::text, $10::bigint * interval '1 us', $11::bigint * interval '1 us')`
	sqlDrain   = `SELECT ours FROM fence.drain($1::text, $2::bigint, $3::bytea)`
	sqlExtend  = `SELECT n, extended, busy FROM fence.extend_leases($1::text[], $2::text[], $3::bigint[], $4::boolean)`
	sqlFree    = `SELECT n, freed, busy FROM fence.free_leases($1::text[], $2::text[], $3::bigint * interval '1 us')`
	sqlLeave   = `SELECT fence.leave_line($1::text, $2::text)`
	sqlInspect = `SELECT owner, holder, token, left_us, waiters FROM fence.lease_of($1::text)`
	sqlSurvey  = `SELECT l.owner, l.holder, l.token, l.left_us, l.waiters FROM unnest($1::text[]) WITH ORDINALITY AS asked(resource, n), fence.lease_of(asked.resource) l ORDER BY asked.n`
	sqlReady   = `SELECT fence.leases_ready()`
)

// mode keeps seal hashes out of the statement's text, which a server may log.
func mode(conn *pgx.Conn) pgx.QueryExecMode {
	if m := conn.Config().DefaultQueryExecMode; m != pgx.QueryExecModeSimpleProtocol {
		return m
	}
	return pgx.QueryExecModeExec
}

// on calls f with a connection of the pool.
func (s *Source) on(ctx context.Context, f func(conn *pgx.Conn) error) error {
	return s.cfg.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return f(conn.Conn()) })
}

// twice calls f, which may be repeated, and calls it once more on another connection if the connection was lost. The
// pool's other connections may have died with it.
func (s *Source) twice(ctx context.Context, f func(conn *pgx.Conn) error) error {
	err := s.on(ctx, f)
	for tries := int32(0); lost(err) && ctx.Err() == nil && tries <= s.cfg.Pool.Config().MaxConns; tries++ {
		again := false
		next := s.on(ctx, func(conn *pgx.Conn) error {
			if err := conn.Ping(ctx); err != nil {
				return err
			}
			again = true
			return f(conn)
		})
		switch {
		case again:
			return next
		case !lost(next):
			return err // no connection is available: the first error says more
		}
	}
	return err
}
