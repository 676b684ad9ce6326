// Package pooler detects a connection pooler between a client and PostgreSQL.
package pooler

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlBackend = `SELECT pg_backend_pid()::bigint, coalesce(current_setting('fencegate.doctor', true), '')`
	sqlMark    = `SELECT pg_backend_pid()::bigint, set_config('fencegate.doctor', $1, false)`
	sqlUnmark  = `SELECT set_config('fencegate.doctor', '', false)`
)

// session is a statement's view of the server session in which it runs.
type session struct {
	pid  int64
	mark string
}

// MixesSessions reports whether statements of one session run in different server sessions, or wait for other sessions:
// a pooler in transaction mode is in between. Such a pooler lends a server connection for one transaction only, so a
// session's settings and locks are lost or reach another client. While a second connection's transaction keeps the
// first one's server connection busy, the first gets another one, or waits. relayed reports any proxy.
func MixesSessions(ctx context.Context, config *pgx.ConnConfig) (mixed, relayed bool, err error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares nothing, so such a pooler causes no errors
	first, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, false, err
	}
	defer func() { _ = first.Close(context.WithoutCancel(ctx)) }()
	second, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, false, err
	}
	defer func() { _ = second.Close(context.WithoutCancel(ctx)) }()
	marked := session{mark: rand.Text()}
	if err := first.QueryRow(ctx, sqlMark, marked.mark).Scan(&marked.pid, &marked.mark); err != nil {
		return false, false, err
	}
	defer func() { _, _ = first.Exec(ctx, sqlUnmark) }() // the server session may be lent to others
	for range 5 {                                        // a pooler with spare connections may lend the right one by chance
		tx, err := second.Begin(ctx)
		if err != nil {
			return false, false, err
		}
		var other, later session
		err = tx.QueryRow(ctx, sqlBackend).Scan(&other.pid, &other.mark)
		waits := false
		if err == nil {
			later, waits, err = whileAnotherIsBusy(ctx, first, tx)
		}
		_ = tx.Rollback(ctx)
		switch {
		case err != nil:
			return false, false, err
		case waits:
			return true, true, nil
		case later != marked, other.pid == marked.pid, other.mark == marked.mark:
			return true, true, nil
		}
	}
	return false, int64(first.PgConn().PID()) != marked.pid, nil
}

// whileAnotherIsBusy queries a session while another one's transaction is open. It reports waits if the session does
// not answer for seconds while the other answers at once. On a slow server neither answers.
func whileAnotherIsBusy(ctx context.Context, asked *pgx.Conn, busy pgx.Tx) (seen session, waits bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	err = asked.QueryRow(bounded, sqlBackend).Scan(&seen.pid, &seen.mark)
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return seen, false, err
	}
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, slow := busy.Exec(soon, "SELECT"); slow != nil {
		return seen, false, err
	}
	return seen, true, nil
}
