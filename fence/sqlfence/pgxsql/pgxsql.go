// Package pgxsql is package sqlfence over pgx: a transaction of database/sql presents the grants of its context
// together with BEGIN, so it takes no extra round trip. The guarantees are those of sqlfence.
//
//	db, err := pgxsql.Open("postgres://writer@localhost/app") // instead of sql.Open("pgx", …)
//	ctx = sqlfence.WithGrant(ctx, grant)
//	tx, err := db.BeginTx(ctx, nil) // one round trip
//
// A statement outside of a transaction takes three round trips.
package pgxsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencegate/fencegate/fence/sqlfence"
)

// Open opens a database by its connection string or URL.
func Open(dataSourceName string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(dataSourceName)
	if err != nil {
		return nil, err
	}
	return OpenDB(*config), nil
}

// OpenDB is stdlib.OpenDB for a database whose connections present the grants of
// [sqlfence.WithGrant].
func OpenDB(config pgx.ConnConfig, opts ...stdlib.OptionOpenDB) *sql.DB {
	return sqlfence.OpenDB(connector{stdlib.GetConnector(config, opts...)})
}

type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	pgxConn, ok := inner.(*stdlib.Conn)
	if !ok {
		return nil, fmt.Errorf("pgxsql: pgx's connection is a %T", inner)
	}
	return &conn{Conn: pgxConn}, nil
}

// conn is pgx's connection that begins under grants.
type conn struct{ *stdlib.Conn }

var _ sqlfence.Pipeliner = (*conn)(nil)

// DriverConn returns the connection for sqlfence.DriverConn.
func (c *conn) DriverConn() driver.Conn { return c.Conn }

// BeginUnder sends BEGIN and the query together.
func (c *conn) BeginUnder(ctx context.Context, opts driver.TxOptions, query string, args []any) (driver.Tx, []driver.Value, error) {
	pgxConn := c.Conn.Conn()
	modes, ok := modesOf(opts)
	if !ok || pgxConn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol { // puts arguments into the text
		return nil, nil, driver.ErrSkip
	}
	if pgxConn.IsClosed() {
		return nil, nil, driver.ErrBadConn
	}
	var row []driver.Value
	batch := &pgx.Batch{}
	batch.BeginTx(modes)
	batch.Queue(query, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				return err
			}
			for _, v := range values {
				row = append(row, v)
			}
		}
		return rows.Err()
	})
	results := pgxConn.SendBatch(ctx, batch)
	err := results.Close()
	pgxTx := results.Tx()
	if err == nil && pgxTx == nil {
		err = errors.New("pgxsql: pgx began no transaction")
	}
	if err != nil {
		if pgxTx != nil {
			rollback(ctx, pgxTx)
		}
		return nil, nil, err
	}
	return tx{ctx: ctx, Tx: pgxTx}, row, nil
}

// modesOf translates the options; ok is false for a level that pgx's driver has to refuse.
func modesOf(opts driver.TxOptions) (modes pgx.TxOptions, ok bool) {
	switch sql.IsolationLevel(opts.Isolation) {
	case sql.LevelDefault:
	case sql.LevelReadUncommitted:
		modes.IsoLevel = pgx.ReadUncommitted
	case sql.LevelReadCommitted:
		modes.IsoLevel = pgx.ReadCommitted
	case sql.LevelRepeatableRead, sql.LevelSnapshot:
		modes.IsoLevel = pgx.RepeatableRead
	case sql.LevelSerializable:
		modes.IsoLevel = pgx.Serializable
	default:
		return modes, false
	}
	if opts.ReadOnly {
		modes.AccessMode = pgx.ReadOnly
	}
	return modes, true
}

// rollbackPatience bounds the clean-up after a failure.
const rollbackPatience = 5 * time.Second

// rollback runs even if the caller's context has ended. On failure pgx closes the connection, which rolls back too.
func rollback(ctx context.Context, pgxTx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	_ = pgxTx.Rollback(ctx)
}

// tx ends with the context that it began with, as pgx's own does.
type tx struct {
	pgx.Tx
	ctx context.Context
}

func (t tx) Commit() error   { return t.Tx.Commit(t.ctx) }
func (t tx) Rollback() error { return t.Tx.Rollback(t.ctx) }
