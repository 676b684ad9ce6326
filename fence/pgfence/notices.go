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
	// ErrUnreplicated: a COMMIT was acknowledged after its wait for a synchronous standby had been cancelled. It is
	// durable on this server, but a failover may undo it. It is joined with [fence.ErrUnknown].
	ErrUnreplicated = errors.New("the wait for the synchronous standby was cancelled: a failover may undo what is committed")
	// ErrNoticesUnavailable: commits wait for a synchronous standby, and the connection does not receive PostgreSQL's
	// warning about a commit that did not reach it. Nothing was done.
	ErrNoticesUnavailable = errors.New("a standby is synchronous, and this connection does not see the warning that a commit did not reach it; prepare its configuration with pgfence.Configure")
)

// Configure makes the pool's connections watch for PostgreSQL's warning that a COMMIT's wait for a synchronous
// standby was cancelled. It is then unknown whether the commit survives a failover, and [InTx] and [Fence.Arm] report
// that. Without Configure they fail if a standby is synchronous ([ErrNoticesUnavailable]). An OnNotice that is
// already set is still called.
//
// It also sets client_encoding to UTF8 where it is not set: the names of resources are, whatever the database's encoding
// is, and pgx itself takes that encoding. Call it before the pool is created:
//
//	config, err := pgxpool.ParseConfig(url)
//	…
//	pgfence.Configure(config)
//	pool, err := pgxpool.NewWithConfig(ctx, config)
func Configure(config *pgxpool.Config) { ConfigureConn(config.ConnConfig) }

// ConfigureConn is [Configure] for single connections.
func ConfigureConn(config *pgx.ConnConfig) {
	if config.RuntimeParams["client_encoding"] == "" {
		config.RuntimeParams["client_encoding"] = "UTF8"
	}
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

// standbyWarnings counts the warnings that one connection received. Only connections prepared by [ConfigureConn] have
// one.
type standbyWarnings struct{ count atomic.Int64 }

// unreplicated recognizes the warning by the routine that raises it, because its text is localized and its code is
// that of any warning. A pooler in between may drop the routine.
func unreplicated(n *pgconn.Notice) bool {
	if n.Routine != "" {
		return n.Routine == "SyncRepWaitForLSN"
	}
	severity := n.SeverityUnlocalized
	return n.Code == "01000" && (severity == "WARNING" || severity == "" && n.Severity == "WARNING") || n.Code == "57P01"
}

// warningWatch counts the warnings from a moment on. The zero value receives none.
type warningWatch struct {
	warnings *standbyWarnings
	before   int64
}

func watchWarnings(conn *pgconn.PgConn) warningWatch {
	warnings, ok := conn.CustomData()[warningsKey].(*standbyWarnings)
	if !ok {
		return warningWatch{}
	}
	return warningWatch{warnings: warnings, before: warnings.count.Load()}
}

// watching reports whether the connection receives warnings.
func (w warningWatch) watching() bool { return w.warnings != nil }

// warned reports whether the warning came. It may be called after the connection was released: a warning of its next
// user then makes an outcome unknown needlessly, which is harmless.
func (w warningWatch) warned() bool { return w.watching() && w.warnings.count.Load() != w.before }

// orUnknown is nil unless the warning came.
func (w warningWatch) orUnknown(doing string) error {
	if w.warned() {
		return fmt.Errorf("%s: %w: %w", doing, fence.ErrUnknown, ErrUnreplicated)
	}
	return nil
}

// WatchCommit watches whether the wait of a COMMIT on this connection for a synchronous standby is cancelled. Call
// warned after the COMMIT: it returns nil, or an error joined with [fence.ErrUnknown]. [ErrNoticesUnavailable]: the
// connection does not receive the warning.
func WatchCommit(ctx context.Context, conn *pgx.Conn) (warned func(doing string) error, err error) {
	w, err := watchCommit(ctx, conn)
	return w.orUnknown, err
}

const asyncKey = "fencegate.async"

// watchCommit starts to watch. On a connection that receives no warnings it asks once whether a standby is
// synchronous.
func watchCommit(ctx context.Context, conn *pgx.Conn) (warningWatch, error) {
	w := watchWarnings(conn.PgConn())
	if w.watching() || conn.PgConn().CustomData()[asyncKey] != nil {
		return w, nil
	}
	var waits bool
	if err := conn.QueryRow(ctx, core.SQLWaits, pgx.QueryExecModeExec).Scan(&waits); err != nil {
		return w, fmt.Errorf("check for a synchronous standby: %w", err)
	}
	if waits {
		return w, ErrNoticesUnavailable
	}
	conn.PgConn().CustomData()[asyncKey] = true
	return w, nil
}
