package pgfence

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

var (
	// ErrUnreplicated: a COMMIT was acknowledged after its wait for a synchronous
	// standby had been cancelled. It is done here, and a failover may undo it. It
	// comes together with [fence.ErrUnknown].
	ErrUnreplicated = errors.New("the wait for the synchronous standby was cancelled: a failover may undo what is committed")
	// ErrNoticesUnavailable: commits wait for a synchronous standby here, and the connection
	// does not see PostgreSQL's warning that one did not. Nothing was done.
	ErrNoticesUnavailable = errors.New("a standby is synchronous, and this connection does not see the warning that a commit did not reach it; prepare its configuration with pgfence.Configure")
)

// Configure makes the pool's connections watch for PostgreSQL's warning that the wait
// of a COMMIT for a synchronous standby was cancelled: it is then unknown
// whether the commit lasts, and [InTx] and [Fence.Arm] say so. Without it they
// refuse to work where a standby is synchronous ([ErrNoticesUnavailable]). An OnNotice
// that is set already is still called. Call it before the pool is made:
//
//	config, err := pgxpool.ParseConfig(url)
//	…
//	pgfence.Configure(config)
//	pool, err := pgxpool.NewWithConfig(ctx, config)
func Configure(config *pgxpool.Config) { ConfigureConn(config.ConnConfig) }

// ConfigureConn is [Configure] for single connections.
func ConfigureConn(config *pgx.ConnConfig) {
	notice, connected := config.OnNotice, config.AfterConnect
	config.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if w, ok := conn.CustomData()[warningsKey].(*standbyWarnings); ok && unreplicated(n) {
			w.count.Add(1)
		}
		if notice != nil {
			notice(conn, n)
		}
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		conn.CustomData()[warningsKey] = &standbyWarnings{}
		if connected != nil {
			return connected(ctx, conn)
		}
		return nil
	}
}

const warningsKey = "fencegate.standby-warnings"

// standbyWarnings counts the warnings that one connection received. A connection that
// [ConfigureConn] has not prepared has none.
type standbyWarnings struct{ count atomic.Int64 }

// unreplicated knows the warning by where PostgreSQL raises it: its text is
// translated, and its code is that of any warning. A pooler in between may
// leave the place out.
func unreplicated(n *pgconn.Notice) bool {
	if n.Routine != "" {
		return n.Routine == "SyncRepWaitForLSN"
	}
	severity := n.SeverityUnlocalized
	return n.Code == "01000" && (severity == "WARNING" || severity == "" && n.Severity == "WARNING") || n.Code == "57P01"
}

// warningWatch counts the warnings from a moment on. The zero value sees none.
type warningWatch struct {
	seen   *standbyWarnings
	before int64
}

func watchWarnings(conn *pgconn.PgConn) warningWatch {
	seen, ok := conn.CustomData()[warningsKey].(*standbyWarnings)
	if !ok {
		return warningWatch{}
	}
	return warningWatch{seen: seen, before: seen.count.Load()}
}

// watching reports whether the connection receives warnings.
func (w warningWatch) watching() bool { return w.seen != nil }

// warned reports whether the warning came. It may be called when the connection
// serves others again: their warnings make an outcome unknown needlessly, which
// does no harm.
func (w warningWatch) warned() bool { return w.watching() && w.seen.count.Load() != w.before }

// orUnknown is nil unless the warning came.
func (w warningWatch) orUnknown(doing string) error {
	if w.warned() {
		return fmt.Errorf("%s: %w: %w", doing, fence.ErrUnknown, ErrUnreplicated)
	}
	return nil
}

// WatchCommit begins to watch whether the wait of a COMMIT on this connection for a synchronous
// standby is cancelled. Ask warned after the COMMIT: nil, or an error joined with
// [fence.ErrUnknown]. [ErrNoticesUnavailable]: the connection does not see it.
func WatchCommit(ctx context.Context, conn *pgx.Conn) (warned func(doing string) error, err error) {
	w, err := watchCommit(ctx, conn)
	return w.orUnknown, err
}

const asyncKey = "fencegate.async"

// watchCommit begins to watch. A connection that sees no warnings is asked once whether
// that matters.
func watchCommit(ctx context.Context, conn *pgx.Conn) (warningWatch, error) {
	w := watchWarnings(conn.PgConn())
	if w.watching() || conn.PgConn().CustomData()[asyncKey] != nil {
		return w, nil
	}
	var waits bool
	if err := conn.QueryRow(ctx, core.SQLWaits).Scan(&waits); err != nil {
		return w, fmt.Errorf("look whether a standby is synchronous: %w", err)
	}
	if waits {
		return w, ErrNoticesUnavailable
	}
	conn.PgConn().CustomData()[asyncKey] = true
	return w, nil
}
