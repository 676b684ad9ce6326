package pgxsql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

// tx is a transaction under grants. It ends with the context that it began with, as pgx's own does.
type tx struct {
	conn     *conn
	inner    pgx.Tx
	ctx      context.Context
	grants   []fence.Grant
	xid, run *string // nil: unknown
}

// Commit commits. The outcomes are those of [sqlfence.InTx].
func (t *tx) Commit() error {
	err := t.committable()
	if err != nil {
		_ = t.Rollback()
	} else {
		t.conn.tx = nil
		err = t.commit()
	}
	if err != nil {
		return fmt.Errorf("commit under %s: %w", core.GrantNames(t.grants), err)
	}
	return nil
}

func (t *tx) committable() error {
	switch conn := t.inner.Conn().PgConn(); {
	case conn.IsClosed():
		return pgconn.ErrConnClosed
	case conn.TxStatus() == 'E':
		return fmt.Errorf("a statement in it had failed: %w", pgx.ErrTxCommitRollback)
	}
	return t.ctx.Err()
}

func (t *tx) commit() error {
	err := t.inner.Commit(t.ctx)
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil, errors.Is(err, pgx.ErrTxCommitRollback):
		return err
	case answered && strings.Contains(pg.Message, core.TxEnded): // by Conn
		return sqlfence.ErrTxEnded
	case answered && pg.SeverityUnlocalized == "ERROR": // FATAL ends the session, possibly after the commit
		return sqlfence.Translate(err)
	}
	unknown := &fence.UnknownError{Err: err}
	if t.xid != nil && t.run != nil {
		unknown.XID, unknown.Run = *t.xid, *t.run
	}
	return unknown
}

// rollbackPatience bounds a rollback, which runs even if the transaction's context has ended.
const rollbackPatience = 5 * time.Second

// Rollback rolls back. On failure pgx closes the connection, which rolls back too.
func (t *tx) Rollback() error {
	t.conn.tx = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), rollbackPatience)
	defer cancel()
	return t.inner.Rollback(ctx)
}
