package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// tx is a transaction of a [conn].
type tx struct {
	conn   *conn
	inner  driver.Tx
	grants []fence.Grant
	xid    string // "": unknown
	run    string
	failed bool // the server ended a statement with an error, and nothing has succeeded since
	unseen bool // statements were run by [DriverConn]
}

var _ driver.Tx = (*tx)(nil)

// named reads the transaction's ID from the row of the statement that presented its grants.
func (t *tx) named(row []driver.Value, name bool) error {
	if !name {
		return nil
	}
	if len(row) != 3 {
		return fmt.Errorf("fence.use answered with %d columns", len(row))
	}
	t.xid, _ = row[1].(string)
	t.run, _ = row[2].(string)
	return nil
}

// Commit commits. Under grants the outcomes are those of [InTx].
func (t *tx) Commit() error {
	t.conn.tx = nil
	err := t.inner.Commit()
	if err != nil && len(t.grants) == 0 && !ended(err) {
		t.conn.broken = true
	}
	switch {
	case len(t.grants) == 0:
		return Translate(err)
	case err == nil && t.failed:
		return fmt.Errorf("commit under %s: a statement in it had failed", core.Named(t.grants))
	case err == nil:
		return nil
	}
	if !ended(err) && !t.failed && !t.conn.answers() {
		t.conn.broken = true
		err = &fence.UnknownError{XID: t.xid, Run: t.run, Err: err}
	}
	return fmt.Errorf("commit under %s: %w", core.Named(t.grants), hideBadConn(Translate(err)))
}

// Rollback rolls back. On failure it closes the connection, which rolls back too: database/sql would keep a
// connection whose IsValid does not report the failure, and the driver may have no such method.
func (t *tx) Rollback() error {
	t.conn.tx = nil
	err := t.inner.Rollback()
	t.conn.broken = t.conn.broken || err != nil
	return Translate(err)
}

// finish commits the transaction of a single statement, unless its context has ended.
func (t *tx) finish(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		t.abandon()
		return err
	}
	return t.Commit()
}

// abandon rolls back the transaction of a failed single statement. Its error is dropped: the statement's is more
// informative.
func (t *tx) abandon() { _ = t.Rollback() }

// answerPatience bounds the check whether a connection still answers.
const answerPatience = 5 * time.Second

// answers reports whether the server has answered everything that was sent before. Answers come in order, so a driver
// that reports an error of COMMIT and then receives another answer has read that of COMMIT, and it did not say that
// the transaction is committed.
func (c *conn) answers() bool {
	inner, ok := c.inner.(driver.Pinger)
	if !ok || !c.IsValid() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerPatience)
	defer cancel()
	err := inner.Ping(ctx)
	c.broken = true // its driver may assume that the transaction is open
	return err == nil
}

// hideBadConn keeps the pool, and callers that retry like it, from repeating what may have been committed.
func hideBadConn(err error) error {
	if !errors.Is(err, driver.ErrBadConn) {
		return err
	}
	if unknown, ok := errors.AsType[*fence.UnknownError](err); ok {
		return &fence.UnknownError{XID: unknown.XID, Run: unknown.Run, Err: errors.New(unknown.Err.Error())}
	}
	return errors.New(err.Error())
}
