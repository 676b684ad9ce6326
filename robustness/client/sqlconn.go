package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// The statements of the surfaces for rows.
const (
	rowKind   = "row:"
	selectRow = `SELECT value FROM judged.registers WHERE resource = $1`
	updateRow = `UPDATE judged.registers SET value = $1, token = $2 WHERE resource = $3`
	useGrant  = `SELECT fence.use($1, $2)`
)

// connectTimeout is for each host of an address that does not set one.
const connectTimeout = 2 * time.Second

// errNoRow reports that the UPDATE matched no row.
var errNoRow = &failure{outcome: history.Failed, code: "no-row", err: errors.New("the register is not there")}

// rows is embedded in surfaces whose leases read and write the row of their resource.
type rows struct{}

func (rows) registers(resource string) []string { return []string{rowKind + resource} }

// session is one connection to PostgreSQL, or to a gateway's port.
type session struct {
	conn   *pgx.Conn
	warned atomic.Bool // a COMMIT did not wait for its standby
}

// connect opens a session with further startup options, which may hold a seal.
func connect(ctx context.Context, address string, options map[string]string) (*session, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, connectTimeout)
	maps.Copy(config.RuntimeParams, options)
	s := new(session)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" && (n.Code == "57014" || n.Code == "57P01") {
			s.warned.Store(true)
		}
	}
	if s.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, err
	}
	return s, nil
}

// closeTimeout bounds the Terminate message.
const closeTimeout = time.Second

// close sends Terminate, and closes the session.
func (s *session) close() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = s.conn.Close(ctx)
}

func (s *session) read(ctx context.Context, resource string) (string, error) {
	var value string
	err := s.conn.QueryRow(ctx, selectRow, resource).Scan(&value)
	return value, sqlFailure(err, false)
}

// rowWrite is a write of one row.
type rowWrite struct {
	write

	resource string
	token    int64
	grant    *fence.Grant // nil: the session already presents it
}

// write sets the row with one statement, or in its own transaction.
func (s *session) write(ctx context.Context, w rowWrite) error {
	if w.grant == nil && w.chance(4) {
		w.pause(ctx)
		return s.commit(ctx, "UPDATE 1", updateRow, w.id, w.token, w.resource)
	}
	err := s.prepare(ctx, w)
	if err == nil {
		w.pause(ctx)
		err = s.commit(ctx, "COMMIT", "COMMIT")
	}
	if err != nil && !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I' {
		_, _ = s.conn.Exec(ctx, "ROLLBACK")
	}
	return err
}

// errGone reports that the connection was closed before anything was sent.
var errGone = &failure{outcome: history.Failed, code: "closed", err: errors.New("the connection is closed")}

// commit sends the committing statement. want is the command tag of a commit.
func (s *session) commit(ctx context.Context, want, sql string, args ...any) error {
	if s.conn.IsClosed() {
		return errGone
	}
	s.warned.Store(false)
	tag, err := s.conn.Exec(ctx, sql, args...)
	switch {
	case err != nil:
		return sqlFailure(err, true)
	case tag.String() == "UPDATE 0":
		return errNoRow
	case tag.String() != want:
		return &failure{outcome: history.Failed, code: tag.String(), err: fmt.Errorf("answered %s", tag)}
	case s.warned.Load():
		return &failure{outcome: history.Unknown, code: "unreplicated", err: errors.New("the wait for the standby was cancelled")}
	}
	return nil
}

// prepare begins a transaction and executes everything before COMMIT.
func (s *session) prepare(ctx context.Context, w rowWrite) error {
	began := history.Now()
	if _, err := s.conn.Exec(ctx, begin(w.write)); err != nil {
		return sqlFailure(err, false)
	}
	if w.grant != nil {
		if _, err := s.conn.Exec(ctx, useGrant, w.grant.Resource, w.grant.Presented()); err != nil {
			return sqlFailure(err, false)
		}
	}
	return sqlFailure(change(ctx, s.conn, w, began), false)
}

// begin returns the statement that begins the transaction.
func begin(w write) string {
	switch {
	case w.chance(6):
		return "BEGIN ISOLATION LEVEL REPEATABLE READ"
	case w.chance(5):
		return "BEGIN ISOLATION LEVEL SERIALIZABLE"
	}
	return "BEGIN"
}

// querier is a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// change runs a program's transaction: sometimes it reads the row first, sometimes it rolls back to a savepoint, and it
// pauses between its statements.
func change(ctx context.Context, in querier, w rowWrite, began int64) error {
	if w.chance(2) {
		var saw string
		if err := in.QueryRow(ctx, selectRow, w.resource).Scan(&saw); err != nil {
			return err
		}
		w.noted(began, rowKind+w.resource, saw)
	}
	w.pause(ctx)
	if w.chance(5) {
		for _, sql := range []string{"SAVEPOINT here", "", "ROLLBACK TO SAVEPOINT here"} {
			if err := step(ctx, in, w, sql); err != nil {
				return err
			}
		}
		if w.grant != nil && w.chance(2) { // a grant presented before the savepoint still applies
			w.pause(ctx)
		}
	}
	return step(ctx, in, w, "")
}

// step runs one statement; "" is the UPDATE.
func step(ctx context.Context, in querier, w rowWrite, sql string) error {
	if sql != "" {
		_, err := in.Exec(ctx, sql)
		return err
	}
	tag, err := in.Exec(ctx, updateRow, w.id, w.token, w.resource)
	if err == nil && tag.RowsAffected() != 1 {
		return errNoRow
	}
	return err
}
