package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/stack"
)

// database is a PostgreSQL with a session of the superuser.
type database struct {
	*stack.Postgres

	admin *pgx.Conn
}

func startDatabase(ctx context.Context, s *stack.Stack, cfg stack.PostgresConfig) database {
	pg := run.Must(s.Postgres(ctx, cfg))
	return database{pg, connect(ctx, s, run.Must(pgx.ParseConfig(pg.Admin())))}
}

// connect opens a session, which the stack closes.
func connect(ctx context.Context, s *stack.Stack, config *pgx.ConnConfig) *pgx.Conn {
	conn := run.Must(pgx.ConnectConfig(ctx, config))
	s.AtClose(func() error { return conn.Close(context.WithoutCancel(ctx)) })
	return conn
}

// gatewayPool opens a pool of a login that arms, which the stack closes, with this many connections.
func gatewayPool(ctx context.Context, s *stack.Stack, pg *stack.Postgres, conns int) *pgxpool.Pool {
	config := run.Must(pgxpool.ParseConfig(pg.As(stack.Gateway)))
	config.MinConns, config.MaxConns = int32(conns), int32(conns)
	pgfence.Configure(config)
	pool := run.Must(pgxpool.NewWithConfig(ctx, config))
	s.AtClose(func() error { pool.Close(); return nil })
	return pool
}

func (d database) exec(ctx context.Context, sql string, args ...any) {
	run.Must(d.admin.Exec(ctx, sql, args...))
}

// ask runs a query of one row.
func (d database) ask(ctx context.Context, sql string, into ...any) {
	run.Check(d.admin.QueryRow(ctx, sql).Scan(into...))
}

// written is the meter of the write-ahead log.
func (d database) written() run.Meter {
	return run.Meter{Name: "bytes of WAL", Read: func(ctx context.Context) (bytes float64) {
		d.ask(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`, &bytes)
		return bytes
	}}
}
