package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/pooler"
)

const (
	sqlLock     = `SELECT pg_catalog.pg_advisory_lock($1)`
	sqlPatience = `SELECT pg_catalog.set_config('lock_timeout', $1, true)`

	// The session that holds the lock. It may be gone, or a prepared transaction, which has no session.
	sqlHolder = `SELECT coalesce(l.pid, 0), coalesce(a.application_name, '')
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = ($1::bigint >> 32)::oid AND l.objid = ($1 & 4294967295)::oid
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
LIMIT 1`
)

// quietWait is how long a wait for the lock is not worth a message.
const quietWait = time.Second

// Option is a choice for [Up] and [Down].
type Option func(*options)

type options struct {
	onWait func(Holder)
}

// OnWait sets f, which is called once if another session has held the lock of the migrations for about a second. The
// wait then continues until ctx ends.
func OnWait(f func(Holder)) Option { return func(o *options) { o.onWait = f } }

// Holder is the session that holds the lock of the migrations.
type Holder struct {
	PID         int    // of its server process; 0: unknown
	Application string // its application_name
}

func (h Holder) String() string {
	switch {
	case h.PID == 0:
		return "another session"
	case h.Application == "":
		return fmt.Sprintf("the session with pid %d", h.PID)
	}
	return fmt.Sprintf("the session with pid %d (%s)", h.PID, h.Application)
}

// withLock runs f while no other process migrates the database. The lock belongs to the session, so it is freed even if
// this process dies.
func withLock(ctx context.Context, url string, opts []Option, f func(*pgx.Conn) error) error {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := keepsSessions(ctx, config); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, sqlSession); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := o.lock(ctx, conn); err != nil {
		return fmt.Errorf("migrate: wait for another migration: %w", err)
	}
	if err := mayWrite(ctx, conn); err != nil {
		return wrap("migrate", err)
	}
	return f(conn)
}

var errMixed = errors.New("a pooler in transaction mode is in between. The lock of the migrations and the settings of this session would stay " +
	"with server sessions that it lends to other clients. Nothing was changed: name PostgreSQL itself, or a pooler in session mode")

// keepsSessions refuses a pooler in transaction mode.
func keepsSessions(ctx context.Context, config *pgx.ConnConfig) error {
	mixed, _, err := pooler.MixesSessions(ctx, config)
	if err == nil && mixed {
		return errMixed
	}
	return err
}

// lock takes the lock. PostgreSQL ends the first wait after quietWait, so that the holder can be reported.
func (o options) lock(ctx context.Context, conn *pgx.Conn) error {
	if o.onWait != nil {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlPatience, quietWait.String()); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sqlLock, int64(lockKey)) // it belongs to the session, not to the transaction
			return err
		})
		if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "55P03" { // lock_not_available
			return err
		}
		var by Holder
		err = conn.QueryRow(ctx, sqlHolder, int64(lockKey)).Scan(&by.PID, &by.Application)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		o.onWait(by)
	}
	_, err := conn.Exec(ctx, sqlLock, int64(lockKey))
	return err
}
