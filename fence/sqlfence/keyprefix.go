package sqlfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/fencegate/fencegate/fence/internal/core"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// KeyPrefix asks for the prefix of the database's keys on Redis nodes, for lock.Config.KeyPrefix. It is the same as
// pgfence.KeyPrefix. The login must be a member of fence_gateway or fence_writer.
func KeyPrefix(db Querier) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (prefix string, err error) {
		if err = db.QueryRowContext(WithGrant(ctx), core.SQLKeyPrefix).Scan(&prefix); err != nil {
			return "", fmt.Errorf("ask PostgreSQL for the prefix of its Redis keys: %w", err)
		}
		return prefix, nil
	}
}
