package pgfence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/internal/core"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// KeyPrefix is the start of the names of the database's keys on Redis nodes, for lock.Config.KeyPrefix and
// continuity.Config.KeyPrefix: "fencegate:" and a UUID that the migrations made. Gateways have the same by default. It is
// another one for each database, so that several may share the nodes; promotions, restores and dumps keep it, and so
// does a copy, until `fencegate fence new-group` gives it its own. The login is in fence_gateway or fence_writer.
func KeyPrefix(ctx context.Context, q Querier) (string, error) {
	var prefix string
	if err := q.QueryRow(ctx, core.SQLKeyPrefix).Scan(&prefix); err != nil {
		return "", fmt.Errorf("ask PostgreSQL for the prefix of its Redis keys: %w", err)
	}
	return prefix, nil
}

// KeyPrefixOf is [KeyPrefix] of a group that is known: fence.lock_group's id.
func KeyPrefixOf(group string) string { return core.KeyPrefix + group }
