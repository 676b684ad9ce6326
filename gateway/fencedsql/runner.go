package fencedsql

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// Config says where a [Runner] runs SQL. [New] validates it once.
type Config struct {
	// URL is the database's address, as a login that is fence_writer only. Required.
	URL string
	// MaxConns is how many requests run at once; more wait. Defaults to 8.
	MaxConns int32
	// StatementTimeout bounds each statement, in PostgreSQL. Defaults to 30 s.
	StatementTimeout time.Duration
	// RequestTimeout bounds a whole request, including the wait for a connection. Defaults to 60 s.
	RequestTimeout time.Duration
	// MaxResultBytes bounds the rows of a request, as JSON with 48 bytes more for each row. Defaults to 8 MiB.
	MaxResultBytes int64
	// Configure is called with the pool's configuration before it is used. Defaults to nil.
	Configure func(*pgxpool.Config)
	// Logger receives failures to reset a connection. Defaults to slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxConns == 0 {
		c.MaxConns = 8
	}
	if c.StatementTimeout == 0 {
		c.StatementTimeout = 30 * time.Second
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = time.Minute
	}
	if c.MaxResultBytes == 0 {
		c.MaxResultBytes = 8 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Runner runs requests. It is safe for concurrent use.
type Runner struct {
	cfg    Config
	pool   *pgxpool.Pool
	places chan struct{}
}

var _ api.SQL = (*Runner)(nil)

const (
	// sqlDiscard resets a session to its state after the login.
	sqlDiscard     = "DISCARD ALL"
	discardTimeout = 5 * time.Second
	messageSlack   = 256 << 10
)

// New creates a runner. It does not connect yet. The error is a [*fence.InvalidError], without the URL, which may
// contain a password.
func New(cfg Config) (*Runner, error) {
	if cfg.MaxConns < 0 || cfg.StatementTimeout < 0 || cfg.RequestTimeout < 0 || cfg.MaxResultBytes < 0 {
		return nil, &fence.InvalidError{Field: "limits", Reason: "include a negative one"}
	}
	cfg = cfg.withDefaults()
	pool, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, &fence.InvalidError{Field: "SQL URL", Reason: "is not a PostgreSQL address"}
	}
	pool.MaxConns = cfg.MaxConns + 1 // one more, so that Check never waits for statements
	// No prepared statements: DISCARD ALL would drop them.
	pool.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	// A single row beyond the limit is never read into memory. The slack is for PostgreSQL's framing of a row, and for
	// the column names.
	pool.ConnConfig.MaxProtocolMessageBodyLen = int(min(cfg.MaxResultBytes, math.MaxInt32)) + messageSlack
	pool.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	pool.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(cfg.StatementTimeout.Milliseconds(), 10)
	pool.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = strconv.FormatInt(cfg.RequestTimeout.Milliseconds(), 10)
	if pool.ConnConfig.RuntimeParams["application_name"] == "" {
		pool.ConnConfig.RuntimeParams["application_name"] = "fencegate sql"
	}
	pool.AfterRelease = func(conn *pgx.Conn) bool {
		ctx, cancel := context.WithTimeout(context.Background(), discardTimeout)
		defer cancel()
		_, err := conn.Exec(ctx, sqlDiscard)
		if err != nil {
			cfg.Logger.Warn("failed to reset a SQL connection; it is closed", "error", err)
		}
		return err == nil
	}
	pgfence.Configure(pool)
	if cfg.Configure != nil {
		cfg.Configure(pool)
	}
	r := &Runner{cfg: cfg, places: make(chan struct{}, cfg.MaxConns)}
	if r.pool, err = pgxpool.NewWithConfig(context.Background(), pool); err != nil {
		return nil, fmt.Errorf("pool of the SQL login: %w", err)
	}
	return r, nil
}

// Close waits for the requests in progress and closes the connections.
func (r *Runner) Close() { r.pool.Close() }

// Run implements [api.SQL].
func (r *Runner) Run(ctx context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error) {
	args := make([]arguments, len(statements))
	for i, st := range statements {
		field := fmt.Sprintf("statements[%d]", i)
		if err := checkCommand(field+".sql", st.SQL); err != nil {
			return nil, err
		}
		var err error
		if args[i], err = readArguments(field+".args", st.Args); err != nil {
			return nil, err
		}
	}
	bounded, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
	defer cancel()
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	case <-bounded.Done():
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &leasing.UnavailableError{Part: wire.PartPostgres, Cause: fmt.Errorf("%d requests are running, the limit, and none ended within %v", r.cfg.MaxConns, r.cfg.RequestTimeout)}
	}
	results := make([]wire.Result, len(statements))
	err := pgfence.InTx(bounded, r.pool, grant, func(tx pgx.Tx) error {
		left := r.cfg.MaxResultBytes
		for i, st := range statements {
			if err := r.statement(bounded, tx.Conn(), st, args[i], &results[i], &left); err != nil {
				return &failedStatement{index: i, err: err}
			}
		}
		return nil
	})
	if err != nil {
		return nil, r.explain(ctx, grant, err)
	}
	return results, nil
}

// rowOverhead is what a row costs beyond its JSON: its slice header twice, because the list of rows grows by copying.
const rowOverhead = 48

// statement runs one statement with the extended protocol, which accepts exactly one command. left is how many bytes
// the request's rows may still take.
func (r *Runner) statement(ctx context.Context, conn *pgx.Conn, st wire.Statement, args arguments, result *wire.Result, left *int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if hasArray(st.Args) {
		if err := args.resolveArrays(ctx, conn.PgConn(), conn.TypeMap(), st); err != nil {
			return err
		}
	}
	rows := conn.PgConn().ExecParams(ctx, st.SQL, args.values, args.oids, nil, nil)
	fields := rows.FieldDescriptions()
	result.Columns, result.Rows = columns(fields, conn.TypeMap()), []json.RawMessage{}
	for rows.NextRow() {
		row, err := appendRow(nil, fields, rows.Values())
		if *left -= int64(len(row)) + rowOverhead; err == nil && *left < 0 {
			err = r.tooLarge()
		}
		if err != nil {
			cancel() // otherwise Close would read the rest
			_, _ = rows.Close()
			return err
		}
		result.Rows = append(result.Rows, row)
	}
	tag, err := rows.Close()
	if _, over := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); over {
		return r.tooLarge()
	}
	if err != nil {
		return err
	}
	result.RowsAffected, result.Command = tag.RowsAffected(), tag.String()
	return nil
}

func (r *Runner) tooLarge() error {
	return &api.TooLargeError{What: "the result", Limit: r.cfg.MaxResultBytes}
}

// failedStatement carries the statement's index out of the transaction.
type failedStatement struct {
	index int
	err   error
}

func (e *failedStatement) Error() string { return fmt.Sprintf("statement %d: %v", e.index, e.err) }
func (e *failedStatement) Unwrap() error { return e.err }

// explain turns the error that ended the transaction into one of the errors of [api.SQL]. ctx is the request's, without
// RequestTimeout.
func (r *Runner) explain(ctx context.Context, grant fence.Grant, err error) error {
	index, at := -1, (*failedStatement)(nil)
	if errors.As(err, &at) {
		index = at.index
	}
	var (
		pgErr    *pgconn.PgError
		tooLarge *api.TooLargeError
		failed   *api.StatementError
	)
	isPg := errors.As(err, &pgErr)
	refusal := pgfence.Translate(err)
	_, refused := fence.CodeOf(refusal)
	switch {
	case errors.As(err, &tooLarge):
		return tooLarge
	case errors.As(err, &failed):
		failed.Index = index
		return failed
	case errors.Is(err, fence.ErrUnknown), errors.Is(err, fence.ErrInvalid):
		return err
	case refused && index < 0:
		return refusal
	case refused:
		e := &api.StatementError{Index: index, SQLState: stateOf(pgErr), Message: refusal.Error(), Cause: refusal}
		if pgErr != nil {
			seen, _ := activity.RefusedByPostgres(pgErr.Code, pgErr.Detail, activity.Event{})
			e.Operation, e.Table = seen.Statement, seen.Table
		}
		return e
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded) && index >= 0:
		return &api.StatementError{
			Index: index, SQLState: stateCanceled,
			Message: fmt.Sprintf("the request took longer than %v", r.cfg.RequestTimeout), Hint: "Nothing was committed.",
		}
	case isPg && !away(pgErr):
		return &api.StatementError{
			Index: index, SQLState: pgErr.Code, Message: pgErr.Message,
			Detail: pgErr.Detail, Hint: pgErr.Hint, Position: int(pgErr.Position),
		}
	}
	// The connection broke before COMMIT was sent. Usually the grant is stale: arming ends the transactions of the
	// previous grant.
	if stale := r.stale(ctx, grant); stale != nil {
		return stale
	}
	return &leasing.UnavailableError{Part: "postgresql", Cause: err}
}

const stateCanceled = "57014"

func stateOf(e *pgconn.PgError) string {
	if e == nil {
		return ""
	}
	return e.Code
}

// away reports whether the server failed rather than the statement: the session ended, insufficient resources, shutdown
// and startup.
func away(e *pgconn.PgError) bool {
	severity := cmp.Or(e.SeverityUnlocalized, e.Severity)
	return severity != "ERROR" || strings.HasPrefix(e.Code, "53") || strings.HasPrefix(e.Code, "57P")
}

// stale returns the fence's refusal of the grant, if it can be obtained.
func (r *Runner) stale(ctx context.Context, grant fence.Grant) error {
	ctx, cancel := context.WithTimeout(ctx, discardTimeout)
	defer cancel()
	err := pgfence.Translate(pgfence.InTx(ctx, r.pool, grant, func(pgx.Tx) error { return nil }))
	if _, refused := fence.CodeOf(err); refused {
		return err
	}
	return nil
}

// sqlRoles checks that the login can write under a grant, and returns in words what else it may do. The owner of a
// guarded table can drop its guard.
const sqlRoles = `SELECT pg_has_role(current_user, 'fence_writer', 'USAGE'), concat_ws(', ',
         CASE WHEN rolsuper THEN 'is a superuser' END,
         CASE WHEN rolreplication THEN 'may replicate' END,
         CASE WHEN rolcreaterole THEN 'may make roles' END,
         (SELECT 'is in ' || string_agg(g.rolname, ' and ' ORDER BY g.rolname) FROM pg_roles g
           WHERE NOT me.rolsuper AND pg_has_role(current_user, g.oid, 'MEMBER')
             AND g.rolname IN ('fence_owner', 'fence_gateway', 'fence_protector', 'fence_locker', 'pg_signal_backend', 'pg_read_server_files', 'pg_write_server_files',
                               'pg_execute_server_program', 'pg_write_all_data')),
         (SELECT 'owns the guarded ' || min(c.oid::regclass::text) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
           WHERE NOT me.rolsuper AND NOT t.tgisinternal AND p.pronamespace = to_regnamespace('fence') AND pg_has_role(current_user, c.relowner, 'MEMBER')
          HAVING count(*) > 0))
  FROM pg_roles me WHERE rolname = current_user`

// ErrLogin is wrapped by [Runner.Check] if a query with the login failed.
var ErrLogin = errors.New("SQL login")

// Check reports whether requests can be served: nil, or why not.
func (r *Runner) Check(ctx context.Context) error {
	var writer bool
	var more string
	if err := r.pool.QueryRow(ctx, sqlRoles).Scan(&writer, &more); err != nil {
		return fmt.Errorf("%w: %w", ErrLogin, err)
	}
	switch {
	case !writer:
		return errors.New("the SQL login is not in fence_writer; grant it: GRANT fence_writer TO …")
	case more != "":
		return fmt.Errorf("the SQL login may do more than write under a grant: it %s; give /v1/sql a login that is in fence_writer only and owns no guarded table", more)
	}
	return nil
}
