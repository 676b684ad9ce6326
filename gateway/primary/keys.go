package primary

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// databaseKeys is the prefix of the database's own Redis keys. PostgreSQL is asked until it has answered once.
type databaseKeys struct {
	pool *pgxpool.Pool

	mu     sync.Mutex
	answer string
}

// prefix asks PostgreSQL if it has not answered yet.
func (k *databaseKeys) prefix(ctx context.Context) (string, error) {
	k.mu.Lock()
	answer := k.answer
	k.mu.Unlock()
	if answer != "" {
		return answer, nil
	}
	prefix, err := pgfence.KeyPrefix(k.pool)(ctx)
	if err != nil {
		return "", &leasing.UnavailableError{Part: leasing.PartPostgres, Cause: err}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answer = prefix
	return prefix, nil
}
