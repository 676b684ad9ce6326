package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/migrations"
)

// The code of all sets is applied in one transaction, after the state. CREATE OR REPLACE
// takes no lock that a writer meets, but for views: whoever reads one holds it up. So the
// wait for a view is short, and tried again.
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

// sqlNoteCode says what is applied, beside the state; see note.
func sqlNoteCode(set migrations.Set) string {
	return fmt.Sprintf(`COMMENT ON SCHEMA %s IS '%s'`, set.Name, noteOf(set.Name, set.Latest, set.Code))
}

const (
	// What is not ours and would go with the functions: a view or a column of somebody's. Triggers and event triggers are
	// guards, and go.
	sqlDependents = `SELECT DISTINCT pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
  FROM pg_catalog.pg_depend d
  LEFT JOIN pg_catalog.pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
  LEFT JOIN pg_catalog.pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
  LEFT JOIN pg_catalog.pg_policy p ON d.classid = 'pg_policy'::regclass AND p.oid = d.objid
  LEFT JOIN pg_catalog.pg_class c ON c.oid = coalesce(r.ev_class, a.adrelid, p.polrelid)
  LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, 0) i
 WHERE d.deptype IN ('n', 'a') AND d.classid NOT IN ('pg_trigger'::regclass, 'pg_event_trigger'::regclass, 'pg_publication_rel'::regclass)
   AND coalesce(n.nspname, i.schema, '') NOT IN ('fence', 'objects') AND i.type <> 'default acl'
   AND (d.refclassid, d.refobjid) IN (
     SELECT 'pg_proc'::regclass, x.oid FROM pg_catalog.pg_proc x WHERE x.pronamespace = $1::regnamespace
     UNION ALL SELECT 'pg_class', x.oid FROM pg_catalog.pg_class x WHERE x.relnamespace = $1::regnamespace
     UNION ALL SELECT 'pg_type', x.oid FROM pg_catalog.pg_type x WHERE x.typnamespace = $1::regnamespace)
 ORDER BY 1 LIMIT 10`

	// The functions that go with a set: all of its schema, and those that it put elsewhere. Event triggers first, which
	// would look at the others.
	sqlDropsOfCode = `SELECT pg_catalog.format('DROP %s IF EXISTS %s CASCADE', CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
                         p.oid::regprocedure)
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = $1 OR n.nspname || '.' || p.proname || '(' || pg_catalog.oidvectortypes(p.proargtypes) || ')' = ANY ($2)
 ORDER BY p.prorettype <> 'event_trigger'::regtype, p.oid`
)

// dropCode removes a set's functions, and with them the guards of tables, before its state
// is removed. What is somebody else's and depends on them keeps them where they are.
func dropCode(ctx context.Context, conn *pgx.Conn, set migrations.Set) error {
	note, err := readNote(ctx, conn, set.Name)
	if err != nil || note.known && note.version < 1 {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sqlDependents, set.Name)
		dependents, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(dependents) > 0 {
			return fmt.Errorf("other things depend on the schema %s; drop them first: %s", set.Name, strings.Join(dependents, ", "))
		}
		if _, err := tx.Exec(ctx, sqlNoPath); err != nil {
			return err
		}
		rows, _ = tx.Query(ctx, sqlDropsOfCode, set.Name, set.Code.Names())
		drops, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, drop := range drops {
			if _, err := tx.Exec(ctx, drop); err != nil {
				return err
			}
		}
		if note.known {
			_, err = tx.Exec(ctx, fmt.Sprintf(`COMMENT ON SCHEMA %s IS 'fencegate %[1]s state %d'`, set.Name, note.version))
		}
		return err
	})
}

// forget removes a set's record, when the set is gone.
func forget(ctx context.Context, conn *pgx.Conn, set migrations.Set) error {
	_, err := conn.Exec(ctx, fmt.Sprintf(`DROP TABLE IF EXISTS %s; DELETE FROM fencegate.code WHERE name = '%s'`, stateTable(set.Name), set.Name))
	return err
}
