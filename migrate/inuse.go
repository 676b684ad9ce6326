package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// InUseError says that removing the migrations would leave tables without a
// guard, or forget fences, or, where only the objects were to go, buckets.
type InUseError struct {
	Fences    int64
	Protected []string // at most ten of the protected tables
	Buckets   int64
}

func (e *InUseError) Error() string {
	if e.Buckets > 0 {
		return fmt.Sprintf("migrate down would forget %d bucket(s) with their objects; force it if that is meant", e.Buckets)
	}
	var what []string
	if e.Fences > 0 {
		what = append(what, fmt.Sprintf("%d fence(s)", e.Fences))
	}
	if len(e.Protected) > 0 {
		what = append(what, "the protection of "+strings.Join(e.Protected, ", "))
	}
	return "migrate down would remove " + strings.Join(what, " and ") + ": stale writers could write again; force it if that is meant"
}

const (
	// Asks for what a removal would destroy. The schema may be there in part.
	sqlCountFences  = `SELECT count(*) FROM fence.resources`
	sqlCountBuckets = `SELECT count(*) FROM objects.buckets`
	sqlProtected    = `SELECT relation::text FROM fence.protected ORDER BY 1 LIMIT 10`
)

// inUse looks for what a removal would destroy.
func inUse(ctx context.Context, conn *pgx.Conn, which Set) error {
	var e InUseError
	var has bool
	count := func(table, sql string, n *int64) error {
		if err := conn.QueryRow(ctx, sqlIsThere, table).Scan(&has); err != nil || !has {
			return wrap("look for "+table, err)
		}
		return wrap("count "+table, conn.QueryRow(ctx, sql).Scan(n))
	}
	if which == Objects {
		if err := count("objects.buckets", sqlCountBuckets, &e.Buckets); err != nil || e.Buckets == 0 {
			return err
		}
		return &e
	}
	if err := count("fence.resources", sqlCountFences, &e.Fences); err != nil {
		return err
	}
	if err := conn.QueryRow(ctx, sqlIsThere, "fence.protected").Scan(&has); err != nil {
		return wrap("look for protected tables", err)
	}
	if has {
		rows, _ := conn.Query(ctx, sqlProtected) // the error comes again from rows
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return wrap("look for protected tables", err)
		}
		e.Protected = tables
	}
	if e.Fences > 0 || len(e.Protected) > 0 {
		return &e
	}
	return nil
}
