package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// DirtyError says that a migration was interrupted, and that the schema's note of
// its version, by which that is made good, is missing or was changed.
type DirtyError struct{ Version int }

func (e *DirtyError) Error() string {
	return fmt.Sprintf("the migration to version %[1]d was interrupted. Each is one transaction, so it was applied entirely or not at all: "+
		"look whether its objects exist (migrations/%06[1]d_*). If they do, run: UPDATE %[2]s.%[3]s SET dirty = false; "+
		"if not, set version to the one before it as well, or DELETE FROM %[2]s.%[3]s where it was the first. Then migrate again", e.Version, schema, table)
}

// InUseError says that removing the migrations would leave tables without a
// guard, or forget fences.
type InUseError struct {
	Fences    int64
	Protected []string // at most ten of the protected tables
}

func (e *InUseError) Error() string {
	var what []string
	if e.Fences > 0 {
		what = append(what, fmt.Sprintf("%d fence(s)", e.Fences))
	}
	if len(e.Protected) > 0 {
		what = append(what, "the protection of "+strings.Join(e.Protected, ", "))
	}
	return "migrate down would remove " + strings.Join(what, " and ") + ": stale writers could write again; force it if that is meant"
}

// inUse looks for what a removal would destroy.
func inUse(ctx context.Context, conn *pgx.Conn) error {
	var e InUseError
	var has bool
	if err := conn.QueryRow(ctx, sqlHasFences).Scan(&has); err != nil {
		return wrap("look for fences", err)
	}
	if has {
		if err := conn.QueryRow(ctx, sqlCountFences).Scan(&e.Fences); err != nil {
			return wrap("count fences", err)
		}
	}
	if err := conn.QueryRow(ctx, sqlHasProtected).Scan(&has); err != nil {
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
