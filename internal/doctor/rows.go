package doctor

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// collect reads rows into structs.
func collect[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]T, error) {
	rows, _ := conn.Query(ctx, sql, args...) // rows returns the error again
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return list, err
}

type fault struct{ Found, Do string }
