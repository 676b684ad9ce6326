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
	// ErrDeaf: commits wait for a synchronous standby here, and the connection
	// would miss PostgreSQL's warning that one did not. Nothing was done.
	ErrDeaf = errors.New("a standby is synchronous, and this connection would miss the warning that a commit did not reach it; prepare its configuration with pgfence.Configure")
)

// Configure makes the pool's connections hear PostgreSQL's warning that the wait
// of a COMMIT for a synchronous standby was cancelled: it is then unknown
// whether the commit lasts, and [InTx] and [Fence.Arm] say so. Without it they
// refuse to work where a standby is synchronous ([ErrDeaf]). An OnNotice
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
		if e, ok := conn.CustomData()[earKey].(*ear); ok && unreplicated(n) {
			e.warnings.Add(1)
		}
		if notice != nil {
			notice(conn, n)
		}
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		conn.CustomData()[earKey] = &ear{}
		if connected != nil {
			return connected(ctx, conn)
		}
		return nil
	}
}

const earKey = "fencegate.ear"

// ear counts what one connection heard. A connection without one is deaf.
type ear struct{ warnings atomic.Int64 }

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

// hearing is what is heard from a moment on. The zero value hears nothing.
type hearing struct {
	ear    *ear
	before int64
}

func hear(conn *pgconn.PgConn) hearing {
	e, ok := conn.CustomData()[earKey].(*ear)
	if !ok {
		return hearing{}
	}
	return hearing{ear: e, before: e.warnings.Load()}
}

// warned reports whether the warning came. It may be called when the connection
// serves others again: their warnings make an outcome unknown needlessly, which
// does no harm.
func (h hearing) warned() bool { return h.ear != nil && h.ear.warnings.Load() != h.before }

// orUnknown is nil unless the warning came.
func (h hearing) orUnknown(doing string) error {
	if h.warned() {
		return fmt.Errorf("%s: %w: %w", doing, fence.ErrUnknown, ErrUnreplicated)
	}
	return nil
}

// HearCommit begins to hear whether the wait of a COMMIT on this connection for a synchronous standby is cancelled. Ask heard
// after the COMMIT: nil, or an error joined with [fence.ErrUnknown]. [ErrDeaf]: the connection would not hear it.
func HearCommit(ctx context.Context, conn *pgx.Conn) (heard func(doing string) error, err error) {
	h, err := listen(ctx, conn)
	return h.orUnknown, err
}

const asyncKey = "fencegate.async"

// listen begins to hear. A deaf connection is asked once whether that matters.
func listen(ctx context.Context, conn *pgx.Conn) (hearing, error) {
	h := hear(conn.PgConn())
	if h.ear != nil || conn.PgConn().CustomData()[asyncKey] != nil {
		return h, nil
	}
	var waits bool
	if err := conn.QueryRow(ctx, core.SQLWaits).Scan(&waits); err != nil {
		return h, fmt.Errorf("look whether a standby is synchronous: %w", err)
	}
	if waits {
		return h, ErrDeaf
	}
	conn.PgConn().CustomData()[asyncKey] = true
	return h, nil
}
