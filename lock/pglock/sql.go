package pglock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The functions are those of migrations/fence/code/leases.sql. Times are microseconds.
const (
	sqlTakeAll = `SELECT n, taken, held, token, holder, left_us FROM fence.take_leases($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::text[], $6::boolean[])`
	sqlTake    = `SELECT taken, token, holder, left_us FROM fence.take_lease($1::text, $2::text, $3::bigint, $4::bytea, $5::text, $6::boolean, ` +
		`$7::text, $8::bigint * interval '1 us', $9::bigint * interval '1 us')`
	sqlDrain   = `SELECT ours FROM fence.drain($1::text, $2::bigint, $3::bytea)`
	sqlExtend  = `SELECT n, extended, busy FROM fence.extend_leases($1::text[], $2::text[], $3::bigint[], $4::boolean)`
	sqlFree    = `SELECT n, freed, busy FROM fence.free_leases($1::text[], $2::text[], $3::bigint * interval '1 us')`
	sqlLeave   = `SELECT fence.leave_line($1::text, $2::text)`
	sqlInspect = `SELECT l.owner, l.holder, l.token, l.left_us, l.waiters FROM unnest($1::text[]) WITH ORDINALITY AS asked(resource, n), fence.lease_of(asked.resource) l ORDER BY asked.n`
	sqlReady   = `SELECT FROM fence.take_leases('{}', '{}', '{}', '{}', '{}', '{}')` // fails as taking a lease does
)

// unpreparedKey marks a connection on which prepared statements do not work.
const unpreparedKey = "fencegate.unprepared"

// mode is the pool's mode if that caches: without it a statement takes a tenth longer. The simple protocol would put seal
// hashes into the statement's text, which a server may log.
func mode(conn *pgx.Conn) pgx.QueryExecMode {
	m := conn.Config().DefaultQueryExecMode
	caches := m == pgx.QueryExecModeCacheStatement || m == pgx.QueryExecModeCacheDescribe
	if !caches || conn.PgConn().CustomData()[unpreparedKey] != nil {
		return pgx.QueryExecModeExec
	}
	return m
}

// notPrepared reports whether a statement was refused because a pooler in transaction mode sent its preparation, or an
// earlier client's, to another server session. Nothing was done.
func notPrepared(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (refused.Code == "42P05" || refused.Code == "26000") // duplicate_prepared_statement, invalid_sql_statement_name
}

const (
	// answerLimit bounds how long a connection of the pool is waited for that was idle and may be dead.
	answerLimit = time.Second
	// oneLimit bounds one try of an extension, a release or an inspection. It exceeds the functions' lock_timeout.
	oneLimit = 7 * time.Second
	// takeLimit bounds one try of an acquisition. It exceeds the waits for the turn and for the drain.
	takeLimit = 3 * turnLimit
)

// on calls f with a connection of the pool, and once more if the connection can't have prepared statements: then it
// prepares none from now on.
func (s *store) on(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer release(conn)
	err = f(conn.Conn())
	if notPrepared(err) {
		conn.Conn().PgConn().CustomData()[unpreparedKey] = true
		err = f(conn.Conn())
	}
	return err
}

// release returns a connection to the pool. One that was given up leaves the pool at once: the pool itself would count
// it for as long as the server does not close it, up to 15 s, and make no other in its place.
func release(conn *pgxpool.Conn) {
	if conn.Conn().IsClosed() {
		conn.Hijack() // the driver is closing it
		return
	}
	conn.Release()
}

// connection returns a connection of the pool. The pool's ping of an idle connection has no bound of its own, and if one
// has died silently, the others may have died with it.
func (s *store) connection(ctx context.Context) (*pgxpool.Conn, error) {
	if s.cfg.Pool.Stat().IdleConns() > 0 {
		one, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		conn, err := s.cfg.Pool.Acquire(one)
		if err == nil || one.Err() == nil || ctx.Err() != nil {
			return conn, err
		}
		s.testIdle(ctx)
	}
	return s.cfg.Pool.Acquire(ctx)
}

// testIdle pings all idle connections at once. Those that do not answer leave the pool.
func (s *store) testIdle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var all sync.WaitGroup
	for _, conn := range s.cfg.Pool.AcquireAllIdle(ctx) {
		all.Go(func() {
			defer release(conn)
			_ = conn.Ping(ctx) // it closes a connection that does not answer
		})
	}
	all.Wait()
}

// twice calls f, which may be repeated, and calls it once more on another connection if the connection was lost, or gave
// no answer within limit. The pool's other connections may have died with it.
func (s *store) twice(ctx context.Context, limit time.Duration, f func(ctx context.Context, conn *pgx.Conn) error) error {
	try := func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return f(ctx, conn)
	}
	err := s.on(ctx, try)
	for tries := int32(0); lost(err) && ctx.Err() == nil && tries <= s.cfg.Pool.Config().MaxConns; tries++ {
		again := false
		next := s.on(ctx, func(conn *pgx.Conn) error {
			if err := answers(ctx, conn); err != nil {
				return err
			}
			again = true
			return try(conn)
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

func answers(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return conn.Ping(ctx)
}
