package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/migrations"
)

// The code of all sets is applied in one transaction, after the state. CREATE OR REPLACE takes no lock that conflicts
// with writers. For views it waits for readers, so the wait is short, and repeated.
const (
	codeTries     = 10
	sqlBeginCode  = `SET LOCAL lock_timeout = '1s'; SET LOCAL check_function_bodies = off; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL ROLE fence_owner`
	sqlEndCode    = `RESET ROLE`
	sqlRecordCode = `INSERT INTO fencegate.code (name, revision, hash, min_program) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE SET revision = EXCLUDED.revision, hash = EXCLUDED.hash, min_program = EXCLUDED.min_program, applied_at = pg_catalog.now()`
)

// applyCode applies the code of the sets that are not up to date, in one transaction.
func (k kit) applyCode(ctx context.Context, conn *pgx.Conn, which Set) error {
	status, err := k.look(ctx, conn, All)
	if err != nil {
		return err
	}
	recorded, err := recordedCode(ctx, conn)
	if err != nil {
		return err
	}
	var stale []migrations.Set
	for _, set := range k {
		if s, _ := status.of(set.Name); which.has(set.Name) && !(s.upToDate() && recorded[set.Name].revision == s.Revision && !missesAny(status, set)) {
			stale = append(stale, set)
		}
	}
	for try := 1; ; try++ {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return applyIn(ctx, tx, stale) })
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Code != "55P03" && refused.Code != "40P01" || try == codeTries || ctx.Err() != nil {
			return wrap("apply the code", err)
		}
	}
}

// missesAny reports whether a function or view of the set was dropped.
func missesAny(status Status, set migrations.Set) bool {
	return slices.ContainsFunc(set.Code.Names(), func(f string) bool { return slices.Contains(status.Missing, f) })
}

func applyIn(ctx context.Context, tx pgx.Tx, sets []migrations.Set) error {
	if len(sets) > 0 {
		if err := applyFiles(ctx, tx, sets); err != nil {
			return err
		}
	}
	for _, set := range sets {
		code := set.Code
		if _, err := tx.Exec(ctx, sqlRecordCode, set.Name, code.Revision, code.Hash, code.MinProgram); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlNoteCode(set)); err != nil {
			return err
		}
	}
	return nil
}

func applyFiles(ctx context.Context, tx pgx.Tx, sets []migrations.Set) error {
	for _, set := range sets {
		if err := mayTrust(ctx, tx, set.Name); err != nil {
			return err
		}
		if set.Needs == nil {
			continue
		}
		if err := mayTrust(ctx, tx, set.Needs.Set); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, sqlBeginCode); err != nil {
		return err
	}
	for _, set := range sets {
		for _, file := range set.Code.Files {
			if _, err := tx.Exec(ctx, file.Text); err != nil {
				return fmt.Errorf("%s/code/%s: %w", set.Name, file.Name, err)
			}
		}
	}
	_, err := tx.Exec(ctx, sqlEndCode)
	return err
}

// sqlNoteCode returns the statement that records the state and the applied code; see note.
func sqlNoteCode(set migrations.Set) string {
	return fmt.Sprintf(`COMMENT ON SCHEMA %s IS '%s'`, set.Name, noteOf(set))
}
