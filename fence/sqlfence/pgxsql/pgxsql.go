// Package pgxsql opens pgx's database/sql pools whose transactions present the grants of their contexts, for GORM,
// sqlx, ent, bun and programs that begin and commit themselves. They need no change:
//
//	db, err := pgxsql.Open("postgres://writer@localhost/app") // instead of sql.Open("pgx", …)
//	ctx = sqlfence.WithGrant(ctx, grant)
//	err = orm.WithContext(ctx).Save(&order).Error // GORM, in its own transaction
//
// The guarantee is that of package sqlfence. A transaction or statement that begins with the context of
// [sqlfence.WithGrant] presents its grants, by fence.use in that transaction: nothing stays on the session, so it works
// behind a pooler in transaction mode too, with a query execution mode that prepares nothing (pgx.QueryExecModeExec).
// With a context without a grant it presents none:
//   - A transaction presents the grants until it ends, together with BEGIN: it takes no extra round trip. A statement in
//     it whose context carries other grants is refused.
//   - A statement outside of a transaction runs in one of its own, which is committed before its rows are returned
//     (up to 1 MiB of them; beyond that at their end). Statements that can't run in a transaction, such as VACUUM,
//     need a context without a grant.
//   - An unanswered COMMIT is a [*fence.UnknownError], which the pool does not retry; see [sqlfence.Outcome].
//   - Under a grant a text is one statement. BEGIN, COMMIT and the like are refused: they would leave the transaction
//     that presents it.
//
// In [sql.Conn.Raw], pgx's own connection is raw.(interface{ Conn() *pgx.Conn }).Conn(). Statements on it present no
// grant, except inside a transaction that does.
package pgxsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Open opens a database by its connection string or URL.
func Open(dataSourceName string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(dataSourceName)
	if err != nil {
		return nil, err
	}
	return OpenDB(*config), nil
}

// OpenDB is stdlib.OpenDB for a database whose connections present the grants of [sqlfence.WithGrant]. The login is a
// member of fence_writer. Connecting fails if the connection's options present a grant already, or with
// pgx.QueryExecModeSimpleProtocol, which would write seals into a statement's text.
func OpenDB(config pgx.ConnConfig, opts ...stdlib.OptionOpenDB) *sql.DB {
	return sql.OpenDB(connector{Connector: stdlib.GetConnector(config, opts...), mode: config.DefaultQueryExecMode})
}

type connector struct {
	driver.Connector
	mode pgx.QueryExecMode
}

// Connect opens a connection and checks that it does not present a grant already.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	if c.mode == pgx.QueryExecModeSimpleProtocol {
		return nil, &fence.InvalidError{Field: "query execution mode", Reason: "is the simple protocol, which would put seals into statements: use pgx.QueryExecModeExec"}
	}
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	std, ok := inner.(*stdlib.Conn)
	if !ok {
		return nil, fmt.Errorf("pgxsql: pgx's connection is a %T", inner)
	}
	var presents bool
	err = std.Conn().QueryRow(ctx, core.SQLPresents, pgx.QueryExecModeExec).Scan(&presents)
	if err == nil && presents {
		err = &fence.InvalidError{Field: "connection", Reason: "presents a grant by its options, but a grant is its context's: " +
			"remove fence.resource, fence.token and fence.grants from them"}
	}
	if err != nil {
		_ = inner.Close()
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &conn{stdConn: std}, nil
}
