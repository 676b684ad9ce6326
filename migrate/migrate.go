// Package migrate applies and removes fencegate's schema in a PostgreSQL database.
//
// The guarantee: each migration is one transaction, so it is applied entirely
// or not at all; processes that migrate one database at the same time go one
// by one; and fences are not removed by accident, because without them nothing
// refuses a stale write.
//
//	status, err := migrate.Status(ctx, url) // which version the database has, and which this program has
//	err = migrate.Up(ctx, url)              // all that is missing
//	err = migrate.Down(ctx, url, false)     // *migrate.InUseError where fences or protected tables exist
//
// The url is postgres://… of a login that may create roles and schemas. The
// version is kept in the table fencegate.migrations, whatever the search_path.
// The migrations themselves are run by golang-migrate.
package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

const (
	schema = "fencegate"
	table  = "migrations"

	// lockKey orders the processes that migrate one database: 'fencegat' in ASCII.
	lockKey = 0x66656e6365676174

	sqlLock         = `SELECT pg_catalog.pg_advisory_lock($1)`
	sqlCreateSchema = `CREATE SCHEMA IF NOT EXISTS ` + schema
	sqlPublish      = `GRANT USAGE ON SCHEMA ` + schema + ` TO PUBLIC; GRANT SELECT ON ` + schema + `.` + table + ` TO PUBLIC`
	sqlDropSchema   = `DROP SCHEMA ` + schema + ` CASCADE`
	sqlMayChange    = `DELETE FROM ` + schema + `.` + table + ` WHERE false`
	sqlHasTable     = `SELECT to_regclass('` + schema + `.` + table + `') IS NOT NULL`
	sqlVersion      = `SELECT version, dirty FROM ` + schema + `.` + table

	// What the last migration notes, in its transaction.
	sqlApplied = `SELECT pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace WHERE nspname = 'fence'`
	notePrefix = "fencegate schema version "

	// Asks for what a removal would destroy. The schema may be there in part.
	sqlHasFences    = `SELECT to_regclass('fence.resources') IS NOT NULL`
	sqlCountFences  = `SELECT count(*) FROM fence.resources`
	sqlHasProtected = `SELECT to_regclass('fence.protected') IS NOT NULL`
	sqlProtected    = `SELECT relation::text FROM fence.protected ORDER BY 1 LIMIT 10`
)

// Up applies every migration that the database has not. A database that is up
// to date is success, and a migration that was interrupted is made good; see
// [DirtyError] for the exception.
//
// Where PostgreSQL can't be reached the error is a *pgconn.ConnectError, and
// where the url is malformed a *pgconn.ParseConfigError; so with Down and Status.
func Up(ctx context.Context, url string) error {
	return withLock(ctx, url, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, sqlCreateSchema); err != nil {
			return fmt.Errorf("migrate up: create the schema %s: %w", schema, err)
		}
		if err := run(ctx, conn, url, up); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, sqlPublish) // a gateway's login may ask for the status
		return wrap("migrate up: publish the version", err)
	})
}

// Down removes everything that the migrations made, in this database and, where
// nothing else uses them, the roles. It gives an [*InUseError] where fences or
// protected tables exist, unless forced. A database without migrations is success.
func Down(ctx context.Context, url string, force bool) error {
	return withLock(ctx, url, func(conn *pgx.Conn) error {
		var has bool
		if err := conn.QueryRow(ctx, sqlHasTable).Scan(&has); err != nil || !has {
			return wrap("migrate down", err)
		}
		if _, err := conn.Exec(ctx, sqlMayChange); err != nil { // nothing is begun without the right
			return wrap("migrate down", err)
		}
		if !force {
			if err := inUse(ctx, conn); err != nil {
				return err
			}
		}
		if err := run(ctx, conn, url, down); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, sqlDropSchema)
		return wrap("migrate down: drop the schema "+schema, err)
	})
}

// State says how far a database is migrated.
type State struct {
	Version uint // of the database; 0: none
	Latest  uint // of this program
	Dirty   bool // a migration to Version was interrupted, or what is applied is another one; migrating again makes it good
}

// UpToDate reports whether the database is at this program's version.
func (s State) UpToDate() bool { return s.Version == s.Latest && !s.Dirty }

// Newer reports whether a newer program migrated the database, which this one
// leaves alone.
func (s State) Newer() bool { return s.Version > s.Latest }

// String says it for people, in one line.
func (s State) String() string {
	switch {
	case s.Newer():
		return fmt.Sprintf("version %d, newer than this program's %d: use a newer program", s.Version, s.Latest)
	case s.Dirty:
		return fmt.Sprintf("a migration to or from version %d was interrupted: migrate up again (this program has version %d)", s.Version, s.Latest)
	case s.Version == 0:
		return fmt.Sprintf("not migrated (this program has version %d)", s.Latest)
	case s.Version < s.Latest:
		return fmt.Sprintf("version %d of %d: migrate up", s.Version, s.Latest)
	}
	return fmt.Sprintf("version %d, up to date", s.Version)
}

// Status reports how far the database is migrated. Any login may ask; it changes
// nothing.
func Status(ctx context.Context, url string) (State, error) {
	latest, err := latest()
	if err != nil {
		return State{}, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return State{}, fmt.Errorf("migrate status: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	state := State{Latest: latest}
	var has bool
	if err := conn.QueryRow(ctx, sqlHasTable).Scan(&has); err != nil {
		return state, wrap("migrate status", err)
	}
	version, recorded := int64(-1), has // also where the first migration's removal was interrupted
	if has {
		err := conn.QueryRow(ctx, sqlVersion).Scan(&version, &state.Dirty)
		if recorded = !errors.Is(err, pgx.ErrNoRows); recorded && err != nil {
			return state, wrap("migrate status", err)
		}
	}
	state.Version = uint(max(version, 0))
	applied, known, err := noted(ctx, conn)
	switch {
	case !known:
	case !recorded: // a dump without the record, or migrated by other means
		state.Version = uint(max(applied, 0))
	case int64(applied) != version:
		state.Dirty = true
	}
	return state, wrap("migrate status", err)
}

// latest is the highest version among the embedded migrations.
func latest() (uint, error) {
	src, err := iofs.New(migrations.FS, ".")
	if err != nil {
		return 0, fmt.Errorf("read the embedded migrations: %w", err)
	}
	defer func() { _ = src.Close() }()
	version, err := src.First()
	for err == nil {
		var next uint
		if next, err = src.Next(version); err == nil {
			version = next
		}
	}
	return version, nil // the error says that there is no next one
}

// withLock runs f while no other process migrates the database. The lock is the
// session's, so it is given back even when this process dies.
func withLock(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, sqlLock, int64(lockKey)); err != nil {
		return fmt.Errorf("migrate: wait for another migration: %w", err)
	}
	return f(conn)
}

// wrap adds what was done to an error, and nothing to nil.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
