package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// InUseError reports that removing the migrations would leave tables without a guard, or delete fences or buckets.
type InUseError struct {
	Fences    int64
	Floors    int64    // floors that retired fences have left
	Protected []string // at most ten of the protected tables
	Buckets   int64
}

func (e *InUseError) Error() string {
	var what []string
	if e.Fences > 0 {
		what = append(what, fmt.Sprintf("%d fence(s)", e.Fences))
	}
	if e.Floors > 0 {
		what = append(what, fmt.Sprintf("%d floor(s) of retired fences", e.Floors))
	}
	if len(e.Protected) > 0 {
		what = append(what, "the protection of "+strings.Join(e.Protected, ", "))
	}
	if e.Buckets > 0 {
		what = append(what, fmt.Sprintf("%d bucket(s) with their objects", e.Buckets))
	}
	said := "migrate down would remove " + strings.Join(what, " and ")
	if e.Fences > 0 || e.Floors > 0 || len(e.Protected) > 0 {
		said += ": stale writers could write again"
	}
	return said + "; force it if that is meant"
}

const (
	// These statements count what a removal would destroy. The schema may exist only in part.
	sqlCountFences  = `SELECT count(*) FROM fence.resources`
	sqlCountFloors  = `SELECT count(*) FROM fence.floors`
	sqlCountBuckets = `SELECT count(*) FROM objects.buckets`
	sqlProtected    = `SELECT relation::text FROM fence.protected ORDER BY 1 LIMIT 10`
)

// sqlHold keeps the counts unchanged until the transaction ends. Writers that check a grant are not blocked.
const sqlHold = `LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE`

// inUse counts what a removal would destroy.
func inUse(ctx context.Context, tx pgx.Tx, goes []installed) error {
	var e InUseError
	count := func(table, sql string, n *int64) error {
		var has bool
		if err := tx.QueryRow(ctx, sqlIsThere, table).Scan(&has); err != nil || !has {
			return wrap("look for "+table, err)
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf(sqlHold, table)); err != nil {
			return wrap("count "+table, err)
		}
		return wrap("count "+table, tx.QueryRow(ctx, sql).Scan(n))
	}
	for _, set := range goes {
		if set.Name == "objects" {
			if err := count("objects.buckets", sqlCountBuckets, &e.Buckets); err != nil {
				return err
			}
			continue
		}
		if err := count("fence.resources", sqlCountFences, &e.Fences); err != nil {
			return err
		}
		if err := count("fence.floors", sqlCountFloors, &e.Floors); err != nil {
			return err
		}
		var has bool
		if err := tx.QueryRow(ctx, sqlIsThere, "fence.protected").Scan(&has); err != nil || !has {
			if err != nil {
				return wrap("look for protected tables", err)
			}
			continue
		}
		rows, _ := tx.Query(ctx, sqlProtected) // rows returns the error again
		var err error
		if e.Protected, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return wrap("look for protected tables", err)
		}
	}
	if e.Fences > 0 || e.Floors > 0 || len(e.Protected) > 0 || e.Buckets > 0 {
		return &e
	}
	return nil
}
