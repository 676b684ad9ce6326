package leases

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
)

const (
	sqlTokens = `SELECT resource, token FROM fence.fences WHERE resource = ANY ($1)`

	// sqlCurrent selects the tokens whose grants have not ended.
	sqlCurrent = `SELECT resource, token FROM fence.fences WHERE resource = ANY ($1) AND ended_at IS NULL`
)

// Tokens reads recorded fences.
type Tokens struct{ Pool *pgxpool.Pool }

// Recorded returns the recorded tokens of these resources.
func (t Tokens) Recorded(ctx context.Context, resources []string) (map[string]fence.Token, error) {
	return t.read(ctx, sqlTokens, resources)
}

// Current returns those of grants that have not ended.
func (t Tokens) Current(ctx context.Context, resources []string) (map[string]fence.Token, error) {
	return t.read(ctx, sqlCurrent, resources)
}

func (t Tokens) read(ctx context.Context, sql string, resources []string) (map[string]fence.Token, error) {
	rows, _ := t.Pool.Query(ctx, sql, resources) // rows returns the error again
	recorded := make(map[string]fence.Token)
	var resource string
	var token int64
	_, err := pgx.ForEachRow(rows, []any{&resource, &token}, func() error {
		recorded[resource] = fence.Token(token)
		return nil
	})
	return recorded, err
}
