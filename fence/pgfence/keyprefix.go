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

// KeyPrefix asks for the prefix of the database's keys on Redis nodes, for lock.Config.KeyPrefix and
// continuity.Config.KeyPrefix: "fencegate:" and a UUID created by the migrations. Gateways use it by default. It
// differs for each database, so several can share the nodes. Promotions, restores and dumps keep it; a copy also
// keeps it until `fencegate fence new-group` gives the copy its own. The login must be a member of fence_gateway or
// fence_writer.
func KeyPrefix(q Querier) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (prefix string, err error) {
		if err = q.QueryRow(ctx, core.SQLKeyPrefix).Scan(&prefix); err != nil {
			return "", fmt.Errorf("ask PostgreSQL for the prefix of its Redis keys: %w", err)
		}
		return prefix, nil
	}
}

// KeyPrefixOf is the [KeyPrefix] for a known group: fence.lock_group's id.
func KeyPrefixOf(group string) string { return core.KeyPrefix + group }
