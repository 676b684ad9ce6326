package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

// The statements for rows.
const (
	selectRow = `SELECT value FROM judged.registers WHERE resource = $1`
	updateRow = `UPDATE judged.registers SET value = $1, token = $2 WHERE resource = $3`
	useGrant  = `SELECT fence.use($1, $2)`
	useGrants = `SELECT fence.use($1::text[], $2::text[])`
)

var (
	errNoRow = failed(history.Failed, "no-row", errors.New("the register is not there"))
	errGone  = failed(history.Failed, "closed", errors.New("the connection is closed, and nothing was sent"))
)

// executor executes a program's statements: a connection, a transaction, or psql.
type executor interface {
	// exec executes a statement whose command tag must be want; "": any.
	exec(ctx context.Context, want, sql string, args ...any) error
	// value returns the only value that a query answers with. wrong says that the answer is another.
	value(ctx context.Context, sql string, args ...any) (saw, wrong string, err error)
}

// transact sets the rows in one transaction, or with a statement that commits by itself. It presents the grants, if
// there are any: otherwise the session does.
func transact(ctx context.Context, on executor, w write, present []fence.Grant) error {
	if len(present) == 0 && len(w.set) == 1 && w.dice.chance(4) {
		w.pause(ctx)
		return sqlFailure(update(ctx, on, w.set[0]), true)
	}
	began := history.Now()
	err := on.exec(ctx, "BEGIN", strings.TrimSpace("BEGIN "+isolation(w.dice)))
	if err == nil {
		err = use(ctx, on, present)
	}
	if err == nil {
		err = change(ctx, on, w, began)
	}
	if err == nil {
		w.pause(ctx)
		return sqlFailure(on.exec(ctx, "COMMIT", "COMMIT"), true)
	}
	_ = on.exec(ctx, "", "ROLLBACK") // does nothing on a closed connection
	return sqlFailure(err, false)
}

func isolation(dice *dice) string {
	switch {
	case dice.chance(6):
		return "ISOLATION LEVEL REPEATABLE READ"
	case dice.chance(5):
		return "ISOLATION LEVEL SERIALIZABLE"
	}
	return ""
}

// use presents grants in a transaction.
func use(ctx context.Context, on executor, present []fence.Grant) error {
	var resources, tokens []string
	for _, g := range present {
		resources, tokens = append(resources, g.Resource), append(tokens, g.Presented())
	}
	switch len(present) {
	case 0:
		return nil
	case 1:
		return on.exec(ctx, "", useGrant, resources[0], tokens[0])
	}
	return on.exec(ctx, "", useGrants, resources, tokens)
}

// change runs a program's transaction: sometimes it reads a row first, sometimes it rolls back to a savepoint, and it
// pauses between its statements.
func change(ctx context.Context, on executor, w write, began int64) error {
	for _, s := range w.set {
		if !w.dice.chance(2) {
			continue
		}
		saw, wrong, err := on.value(ctx, selectRow, s.grant.Resource)
		if err != nil || wrong != "" {
			return cmp.Or(err, errors.New(wrong))
		}
		w.noted(began, s, saw)
	}
	w.pause(ctx)
	back := []string{""}
	if w.dice.chance(5) {
		back = []string{"SAVEPOINT here", "", "ROLLBACK TO SAVEPOINT here", ""}
	}
	for _, sql := range back {
		if sql != "" {
			if err := on.exec(ctx, "", sql); err != nil {
				return err
			}
			continue
		}
		for _, s := range w.set {
			if err := update(ctx, on, s); err != nil {
				return err
			}
		}
		w.pause(ctx) // a grant presented before the savepoint still applies
	}
	return nil
}

func update(ctx context.Context, on executor, s setting) error {
	return on.exec(ctx, "UPDATE 1", updateRow, s.value, int64(s.grant.Token), s.grant.Resource)
}

// tagged returns the error of a statement's answer.
func tagged(want, tag string, warned bool) error {
	switch {
	case warned:
		return failed(history.Unknown, "unreplicated", errors.New("the wait for the standby was cancelled"))
	case tag == "UPDATE 0":
		return errNoRow
	case want != "" && tag != want:
		return failed(history.Failed, tag, fmt.Errorf("answered %s", tag))
	}
	return nil
}

// sqlFailure classifies an error for its transaction: by PostgreSQL's rules an ERROR rolls it back, and nothing is
// committed before COMMIT is sent. committing means that COMMIT, or a statement that commits by itself, was sent.
// pgconn.SafeToRetry does not suffice: pgx 5.12.0 also returns it for a simple query that was sent and whose answer was
// lost.
func sqlFailure(err error, committing bool) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := failed(history.Failed, "", err)
	answer, answered := errors.AsType[*pgconn.PgError](err)
	if answered {
		f.code = answer.Code
	}
	switch {
	case committing && (!answered || cmp.Or(answer.SeverityUnlocalized, answer.Severity) != "ERROR"):
		f.outcome = history.Unknown // the end of the connection does not decide the statement before it
	case strings.HasPrefix(f.code, "ZF"):
		f.outcome = history.Refused
	}
	return f
}

// queries is the executor of a connection, or of a transaction of a pool.
type queries struct {
	on interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
	warned *atomic.Bool // a COMMIT did not wait for its standby; nil: it is not noticed here
}

func (q queries) exec(ctx context.Context, want, sql string, args ...any) error {
	if conn, ok := q.on.(*pgx.Conn); ok && conn.IsClosed() {
		return errGone
	}
	tag, err := q.on.Exec(ctx, sql, args...)
	if err != nil {
		return err
	}
	return tagged(want, tag.String(), q.warned != nil && q.warned.Swap(false))
}

func (q queries) value(ctx context.Context, sql string, args ...any) (saw, wrong string, err error) {
	err = q.on.QueryRow(ctx, sql, args...).Scan(&saw)
	return saw, "", err
}

// connected presents the grants of a lease on one connection at a time, and opens another when that has ended: to a
// gateway's PostgreSQL port, or to PostgreSQL.
type connected struct {
	*term

	address func() string
	startup bool // the connection presents the grants; false: each transaction does
	conn    *pgx.Conn
	warned  atomic.Bool
}

func throughPort(e *env, _ ask, t *term) access {
	return &connected{term: t, address: func() string { return e.gateway().PGURL }, startup: e.dice.below(3) > 0}
}

func direct(e *env, a ask, t *term) access {
	if e.dice.chance(2) {
		return pooled(e, a, t)
	}
	return &connected{term: t, address: func() string { return e.cfg.WriterURL }, startup: e.dice.below(3) > 0}
}

func portOrDirect(e *env, a ask, t *term) access {
	if e.dice.chance(3) {
		return direct(e, a, t)
	}
	return throughPort(e, a, t)
}

func balanced(e *env, a ask, t *term) access {
	if e.cfg.Balancer == nil {
		return throughPort(e, a, t)
	}
	return &connected{term: t, address: func() string { return e.cfg.Balancer.PGURL }, startup: e.dice.chance(2)}
}

// open returns the connection. An error means that no transaction began.
func (h *connected) open(ctx context.Context) (queries, error) {
	if h.conn != nil && !h.conn.IsClosed() {
		return queries{h.conn, &h.warned}, nil
	}
	config, err := pgx.ParseConfig(h.address())
	if err != nil {
		return queries{}, err
	}
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, connectTimeout)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" && (n.Code == "57014" || n.Code == "57P01") {
			h.warned.Store(true)
		}
	}
	switch {
	case !h.startup:
	case len(h.grants) == 1:
		config.RuntimeParams["fence.resource"] = fence.EscapeResource(h.grants[0].Resource)
		config.RuntimeParams["fence.token"] = h.grants[0].Presented()
	default:
		var list []string
		for _, g := range h.grants {
			list = append(list, fence.EscapeResource(g.Resource)+"="+g.Presented())
		}
		config.RuntimeParams["fence.grants"] = strings.Join(list, ",")
	}
	h.warned.Store(false)
	if h.conn, err = pgx.ConnectConfig(ctx, config); err == nil {
		return queries{h.conn, &h.warned}, nil
	}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return queries{}, sqlFailure(answer, false)
	}
	return queries{}, failed(history.Failed, "", errors.New("no connection: "+plain(err)))
}

func (h *connected) read(ctx context.Context, register string) (saw, wrong string, err error) {
	q, err := h.open(ctx)
	if err == nil {
		saw, wrong, err = q.value(ctx, selectRow, register[len(rowKind):])
	}
	return saw, wrong, sqlFailure(err, false)
}

func (h *connected) write(ctx context.Context, w write) error {
	q, err := h.open(ctx)
	if err != nil {
		return sqlFailure(err, false)
	}
	if h.startup {
		return transact(ctx, q, w, nil)
	}
	return transact(ctx, q, w, h.grants)
}

// forget sends Terminate, and closes the connection.
func (h *connected) forget() {
	if h.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = h.conn.Close(ctx)
	h.conn = nil
}

// byPool writes with pgfence, in any of its ways.
type byPool struct {
	*term

	pool *pgxpool.Pool
}

func pooled(e *env, _ ask, t *term) access { return byPool{t, e.writing} }

func (h byPool) forget() {}

func (h byPool) read(ctx context.Context, register string) (saw, wrong string, err error) {
	saw, _, err = queries{on: h.pool}.value(ctx, selectRow, register[len(rowKind):])
	return saw, "", sqlFailure(err, false)
}

func (h byPool) write(ctx context.Context, w write) error {
	if w.dice.chance(5) {
		w.pause(ctx)
		batch := new(pgx.Batch)
		for _, s := range w.set {
			batch.Queue(updateRow, s.value, int64(s.grant.Token), s.grant.Resource)
		}
		tags, err := pgfence.ExecBatch(ctx, h.pool, pgx.TxOptions{}, h.grants, batch)
		for _, tag := range tags {
			if err == nil && tag.RowsAffected() != 1 {
				err = errNoRow
			}
		}
		return libraryFailure(err)
	}
	options := options(w.dice)
	if w.dice.chance(3) {
		options.Resolve = time.Second
	}
	began := history.Now()
	return libraryFailure(pgfence.InTxAll(ctx, h.pool, options, h.grants, func(tx pgx.Tx) error {
		return change(ctx, queries{on: tx}, w, began)
	}))
}

func options(dice *dice) (o pgfence.TxOptions) {
	o.IsoLevel = pgx.TxIsoLevel(strings.ToLower(strings.TrimPrefix(isolation(dice), "ISOLATION LEVEL ")))
	return o
}

// bySQLCalls sends its statements by POST /v1/sql.
type bySQLCalls struct {
	*term

	env *env
}

func bySQL(e *env, _ ask, t *term) access { return &bySQLCalls{t, e} }

func (h *bySQLCalls) forget() {}

func (h *bySQLCalls) read(ctx context.Context, register string) (saw, wrong string, err error) {
	results, err := h.run(ctx, statement(selectRow, register[len(rowKind):]))
	if err != nil {
		return "", "", err
	}
	var values []string
	if len(results) != 1 || len(results[0].Rows) != 1 || json.Unmarshal(results[0].Rows[0], &values) != nil || len(values) != 1 {
		return "", fmt.Sprintf("an answer of %d results", len(results)), nil
	}
	return values[0], "", nil
}

// write is one request. Its pauses are before it, and between its statements in PostgreSQL.
func (h *bySQLCalls) write(ctx context.Context, w write) error {
	s := w.set[0]
	var before, after []wire.Statement
	if w.dice.chance(3) {
		before = append(before, statement(selectRow, s.grant.Resource))
	}
	for _, list := range []*[]wire.Statement{&before, &after} {
		if d := w.nap(); d > 0 {
			*list = append(*list, statement("SELECT pg_sleep($1)::text", d.Seconds()))
		}
	}
	set := len(before)
	statements := append(append(before, statement(updateRow, s.value, int64(s.grant.Token), s.grant.Resource)), after...)
	w.pause(ctx)
	results, err := h.run(ctx, statements...)
	switch {
	case err != nil:
		return err
	case len(results) != len(statements):
		return fmt.Errorf("%d results for %d statements", len(results), len(statements))
	case results[set].RowsAffected != 1:
		return errNoRow
	}
	return nil
}

func statement(sql string, args ...any) wire.Statement {
	s := wire.Statement{SQL: sql, Args: []json.RawMessage{}}
	for _, arg := range args {
		raw, _ := json.Marshal(arg) // strings and numbers always encode
		s.Args = append(s.Args, raw)
	}
	return s
}

// run sends a request. Its errors are those of apiFailure.
func (h *bySQLCalls) run(ctx context.Context, statements ...wire.Statement) ([]wire.Result, error) {
	body, err := json.Marshal(wire.SQLRequest{Statements: statements})
	if err != nil {
		return nil, err
	}
	url := strings.TrimRight(h.env.gateway().API, "/") + "/v1/sql"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.GetBody = nil // the transport must not send it twice
	r.Header.Set("Content-Type", "application/json")
	if h.env.cfg.Token != "" {
		r.Header.Set("Authorization", "Bearer "+h.env.cfg.Token)
	}
	fence.SetHeader(r.Header, h.grants[0])
	answer, err := h.env.http.Do(r)
	if err != nil {
		return nil, apiFailure(&client.UnreachableError{Cause: err})
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return nil, apiFailure(&client.UnreachableError{Cause: err})
	}
	if answer.StatusCode != http.StatusOK {
		p := &client.Problem{Problem: wire.Problem{Status: answer.StatusCode}}
		_ = json.Unmarshal(text, &p.Problem) // an answer that is no problem has no code
		return nil, apiFailure(p)
	}
	var done wire.SQLAnswer
	err = json.Unmarshal(text, &done)
	return done.Results, err
}
