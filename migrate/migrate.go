// Package migrate applies and removes fencegate's part of a PostgreSQL database.
//
// The guarantee: each step is one transaction, so it is applied completely or not at all. Processes that migrate one
// database at the same time run one after the other. Up locks no table of the users, and Down locks the protected ones
// for a moment. Fences are not removed by accident, because without them no stale write is refused.
//
//	err := migrate.Up(ctx, url, migrate.All)             // all that is missing
//	err = migrate.Up(ctx, url, migrate.Fence)            // the fence alone, as for fence/pgfence
//	status, err := migrate.Look(ctx, url, migrate.All)   // what the database has, and what this program has
//	err = migrate.Down(ctx, url, migrate.All, false)     // *migrate.InUseError if fences, guards or buckets exist
//
// The url is postgres://… of a login that may create roles and schemas. What is applied is recorded in the schema
// fencegate, whatever the search_path. The SQL is in package migrations. Each set has state (tables), which is applied
// first, and code (functions and views).
package migrate

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

// Up applies everything that the database lacks. A database that is up to date is success. An interrupted step is
// completed or reverted. Up changes nothing in a database that a newer program ([*NewerError]) or another baseline
// ([*OtherBaselineError]) made. It waits for other migrations until ctx ends; see [OnWait].
//
// If PostgreSQL can't be reached the error is a *pgconn.ConnectError, and if the url is malformed a
// *pgconn.ParseConfigError. The same applies to Down and Look.
func Up(ctx context.Context, url string, which Set, opts ...Option) error {
	k, err := embedded()
	if err != nil {
		return err
	}
	return k.up(ctx, url, which, opts...)
}

func (k kit) up(ctx context.Context, url string, which Set, opts ...Option) error {
	return withLock(ctx, url, opts, func(conn *pgx.Conn) error {
		status, err := k.mayChange(ctx, conn)
		if err == nil {
			err = status.gone()
		}
		if err != nil {
			return wrap("migrate up", err)
		}
		sets := slices.DeleteFunc(slices.Clone(k), func(set migrations.Set) bool { return !which.has(set.Name) })
		for _, set := range sets {
			if _, err := trustedNote(ctx, conn, set); err != nil {
				return wrap("migrate up", err)
			}
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

// needed refuses a set if the set that it needs is neither installed nor about to be.
func (k kit) needed(ctx context.Context, conn *pgx.Conn, set migrations.Set, which Set) error {
	if set.Needs == nil || which.has(set.Needs.Set) {
		return nil
	}
	if _, err := trustedNote(ctx, conn, k.set(set.Needs.Set)); err != nil {
		return err
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

// mayChange looks at the database, and refuses one that this program must not change.
func (k kit) mayChange(ctx context.Context, conn *pgx.Conn) (Status, error) {
	status, err := k.look(ctx, conn, All)
	switch {
	case err != nil:
		return status, err
	case status.Other() != nil:
		return status, status.Other()
	case status.Newer():
		return status, &NewerError{Status: status}
	}
	for _, s := range status.Sets {
		if s.recorded {
			// Fail early without the right to write the record.
			if _, err := conn.Exec(ctx, `DELETE FROM `+stateTable(s.Set)+` WHERE false`); err != nil {
				return status, err
			}
		}
	}
	return status, nil
}
