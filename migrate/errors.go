package migrate

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

// DirtyError says that a step was interrupted, and that the schema's note of its
// version, by which that is made good, is missing or was changed.
type DirtyError struct {
	Set     string
	Version int
}

func (e *DirtyError) Error() string {
	return fmt.Sprintf("the migration of the set %[1]s to state %[2]d was interrupted. Each is one transaction, so it was applied entirely or not at all: "+
		"look whether its objects exist (migrations/%[1]s/state/%06[2]d_*). If they do, run: UPDATE %[3]s SET dirty = false; "+
		"if not, set version to the one before it as well, or DELETE FROM %[3]s where it was the first. Then migrate again", e.Set, e.Version, stateTable(e.Set))
}

// NewerError says that a newer program migrated the database.
type NewerError struct{ Status Status }

func (e *NewerError) Error() string { return "the database: " + e.Status.String() }

// PreReleaseError says that a pre-release made the schema. Its numbers mean other steps.
type PreReleaseError struct{ Version int }

func (e *PreReleaseError) Error() string {
	return fmt.Sprintf("the schema was made by a pre-release (version %d), and this program can't upgrade it. Take out what you need: "+
		"the objects through the S3 port, your own tables stay. Then let that pre-release remove its schema (fencegate migrate down --force), "+
		"which forgets every fence, object and guard; or, where it is gone: DROP SCHEMA objects, fence, fencegate CASCADE. "+
		"Then migrate up with this program, and protect the tables again", e.Version)
}

// NeedError says that a set lacks what it needs of another one.
type NeedError struct {
	Set  string
	Need migrations.Need
}

func (e *NeedError) Error() string {
	return fmt.Sprintf("the set %s needs the set %s at state %d, code %d or newer: migrate that first", e.Set, e.Need.Set, e.Need.State, e.Need.Revision)
}

// NeededError says that another set needs the one that is to go.
type NeededError struct{ Set, By string }

func (e *NeededError) Error() string {
	return fmt.Sprintf("the set %[2]s is there and needs the set %[1]s: remove the %[2]s first, or both", e.Set, e.By)
}

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

	// What a pre-release left: its record, or its note.
	sqlPreRelease     = `SELECT to_regclass('fencegate.migrations') IS NOT NULL, pg_catalog.obj_description(to_regnamespace('fence'), 'pg_namespace')`
	sqlPreReleaseFrom = `SELECT coalesce(max(version), 0)::int FROM fencegate.migrations`
	preReleaseNote    = "fencegate schema version "
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

// preRelease is the version of a schema that a pre-release made; 0: none did.
func preRelease(ctx context.Context, conn *pgx.Conn) (version int, err error) {
	var recorded bool
	var note *string
	if err := conn.QueryRow(ctx, sqlPreRelease).Scan(&recorded, &note); err != nil {
		return 0, err
	}
	if note != nil && strings.HasPrefix(*note, preReleaseNote) {
		version, _ = strconv.Atoi(strings.TrimPrefix(*note, preReleaseNote))
		return max(version, 1), nil
	}
	if !recorded {
		return 0, nil
	}
	err = conn.QueryRow(ctx, sqlPreReleaseFrom).Scan(&version)
	return max(version, 1), err
}
