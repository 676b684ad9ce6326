// Package migrate applies and removes what fencegate keeps in a PostgreSQL database.
//
// The guarantee: each step is one transaction, so it is applied entirely or not at
// all; processes that migrate one database at the same time go one by one; Up locks no
// table of the users', and Down locks those that are protected, for a moment; and fences
// are not removed by accident, because without them nothing refuses a stale write.
//
//	err := migrate.Up(ctx, url, migrate.All)             // all that is missing
//	err = migrate.Up(ctx, url, migrate.Fence)            // the fence alone, as for fence/pgfence
//	status, err := migrate.Look(ctx, url, migrate.All)   // what the database has, and what this program has
//	err = migrate.Down(ctx, url, migrate.All, false)     // *migrate.InUseError where fences, protected tables or buckets exist
//
// The url is postgres://… of a login that may create roles and schemas. What is
// applied is recorded in the schema fencegate, whatever the search_path. The SQL is
// in package migrations: of each set first the state, tables that is, and then the
// code, which is functions and views.
package migrate

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

// Up applies all that the database has not. A database that is up to date is success,
// and a step that was interrupted is made good; see [DirtyError] for the exception. A
// database that a newer program migrated is left alone: [*NewerError]. So is one of a
// pre-release: [*PreReleaseError].
//
// Where PostgreSQL can't be reached the error is a *pgconn.ConnectError, and where the
// url is malformed a *pgconn.ParseConfigError; so with Down and Look.
func Up(ctx context.Context, url string, which Set) error {
	k, err := embedded()
	if err != nil {
		return err
	}
	return k.up(ctx, url, which)
}

func (k kit) up(ctx context.Context, url string, which Set) error {
	return withLock(ctx, url, func(conn *pgx.Conn) error {
		status, err := k.mayChange(ctx, conn)
		if err == nil {
			err = status.gone()
		}
		if err != nil {
			return wrap("migrate up", err)
		}
		sets := slices.DeleteFunc(slices.Clone(k), func(set migrations.Set) bool { return !which.has(set.Name) })
		for _, set := range sets {
			if err := k.needed(ctx, conn, set, which); err != nil {
				return wrap("migrate up", err)
			}
		}
		if err := makeRecord(ctx, conn, sets); err != nil {
			return fmt.Errorf("migrate up: create the schema %s: %w", schema, err)
		}
		for _, set := range sets {
			if err := runState(ctx, conn, url, set); err != nil {
				return err
			}
		}
		return wrap("migrate up", k.applyCode(ctx, conn, which))
	})
}

// needed refuses a set whose need is neither in the database nor about to be.
func (k kit) needed(ctx context.Context, conn *pgx.Conn, set migrations.Set, which Set) error {
	if set.Needs == nil || which.has(set.Needs.Set) {
		return nil
	}
	status, err := k.look(ctx, conn, All)
	if err != nil {
		return err
	}
	for _, s := range status.Sets {
		if s.Set == set.Needs.Set && s.Version >= set.Needs.State && s.Revision >= set.Needs.Revision {
			return nil
		}
	}
	return &NeedError{Set: set.Name, Need: *set.Needs}
}

// mayChange looks at the database, and refuses one that is not this program's to change.
func (k kit) mayChange(ctx context.Context, conn *pgx.Conn) (Status, error) {
	status, err := k.look(ctx, conn, All)
	switch {
	case err != nil:
		return status, err
	case status.PreRelease > 0:
		return status, &PreReleaseError{Version: status.PreRelease}
	case status.Newer():
		return status, &NewerError{Status: status}
	}
	for _, s := range status.Sets {
		if s.recorded {
			if _, err := conn.Exec(ctx, `DELETE FROM `+stateTable(s.Set)+` WHERE false`); err != nil { // nothing is begun without the right
				return status, err
			}
		}
	}
	return status, nil
}

// withLock runs f while no other process migrates the database. The lock is the
// session's, so it is given back even when this process dies.
func withLock(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, sqlSession); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := conn.Exec(ctx, sqlLock, int64(lockKey)); err != nil {
		return fmt.Errorf("migrate: wait for another migration: %w", err)
	}
	if err := mayWrite(ctx, conn); err != nil {
		return wrap("migrate", err)
	}
	return f(conn)
}
