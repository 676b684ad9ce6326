package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/migrations"
)

// Down removes everything that the migrations made in this database, and the roles if nothing else uses them. It
// returns an [*InUseError] if fences, protected tables or buckets would be removed, unless forced. It does not remove
// the fence alone while the objects exist: [*NeededError]. It leaves a schema of another owner alone. A database
// without migrations is success.
//
// Down is one transaction: all is removed, or nothing. For a moment it locks the protected tables. If another
// transaction holds them longer, it returns a [*LockedError].
func Down(ctx context.Context, url string, which Set, force bool, opts ...Option) error {
	k, err := embedded()
	if err != nil {
		return err
	}
	return k.down(ctx, url, which, force, opts...)
}

const downTries = 10

func (k kit) down(ctx context.Context, url string, which Set, force bool, opts ...Option) error {
	return withLock(ctx, url, opts, func(conn *pgx.Conn) error {
		if _, err := k.mayChange(ctx, conn); err != nil {
			return wrap("migrate down", err)
		}
		for try := 1; ; try++ {
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return k.downIn(ctx, tx, which, force) })
			refused, ok := errors.AsType[*pgconn.PgError](err)
			switch {
			case !ok || refused.Code != "55P03" && refused.Code != "40P01" || ctx.Err() != nil:
				return wrap("migrate down", err)
			case try == downTries:
				return wrap("migrate down", k.locked(ctx, conn, err))
			}
		}
	})
}

// The settings of the transaction: other transactions do not wait long behind it, and names are printed in one form.
const sqlBeginDown = `SET LOCAL lock_timeout = '1s'; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL quote_all_identifiers = off`

// installed is a set that is installed in the database.
type installed struct {
	migrations.Set
	version int // of its state
}

func (k kit) downIn(ctx context.Context, tx pgx.Tx, which Set, force bool) error {
	if _, err := tx.Exec(ctx, sqlBeginDown); err != nil {
		return err
	}
	var goes, stays []installed
	for _, set := range k {
		version, err := versionOf(ctx, tx, set)
		switch {
		case err != nil:
			return err
		case version > 0 && which.has(set.Name):
			goes = append(goes, installed{set, version})
		case version > 0:
			stays = append(stays, installed{set, version})
		}
	}
	if err := mayRemove(ctx, tx, goes, stays, force); err != nil {
		return err
	}
	if slices.ContainsFunc(goes, func(x installed) bool { return x.Name == "fence" }) {
		if err := dropEvents(ctx, tx); err != nil {
			return err
		}
	}
	if err := dropCode(ctx, tx, goes); err != nil {
		return err
	}
	for _, set := range slices.Backward(goes) {
		if err := dropState(ctx, tx, set); err != nil {
			return err
		}
	}
	return k.forget(ctx, tx, which, len(stays) == 0)
}

// versionOf is the state of an installed set of ours. It is 0 for a schema of the same name that is not ours.
func versionOf(ctx context.Context, tx pgx.Tx, set migrations.Set) (int, error) {
	note, err := readNote(ctx, tx, set)
	if err != nil || !note.known || note.version < 0 {
		return 0, err
	}
	return note.version, mayTrust(ctx, tx, set.Name)
}

// mayRemove refuses a removal that must not happen, before anything is removed.
func mayRemove(ctx context.Context, tx pgx.Tx, goes, stays []installed, force bool) error {
	for _, set := range stays {
		if set.Needs != nil && slices.ContainsFunc(goes, func(x installed) bool { return x.Name == set.Needs.Set }) {
			return &NeededError{Set: set.Needs.Set, By: set.Name}
		}
	}
	if len(goes) == 0 {
		return nil
	}
	if !force {
		if err := inUse(ctx, tx, goes); err != nil {
			return err
		}
	}
	rows, _ := tx.Query(ctx, sqlDependents, schemasOf(goes), namesOf(goes)) // rows returns the error again
	dependents, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(dependents) > 0 {
		err = fmt.Errorf("other things depend on what would go; drop them first: %s", strings.Join(dependents, ", "))
	}
	return err
}

func schemasOf(sets []installed) (list []string) {
	for _, set := range sets {
		list = append(list, set.Name)
	}
	return list
}

func namesOf(sets []installed) (list []string) {
	for _, set := range sets {
		list = append(list, set.Code.Names()...)
	}
	return list
}

const (
	// The functions that are removed with the sets: all in their
	// schemas ($1), and those that they created elsewhere ($2).
	sqlGoes = `FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = ANY ($1::text[]) OR n.nspname || '.' || p.proname || '(' || pg_catalog.oidvectortypes(p.proargtypes) || ')' = ANY ($2::text[])`

	// Objects of others that would be removed with them: a view, or a
	// column. Triggers and event triggers are guards, and are removed.
	sqlDependents = `WITH goes(classid, objid) AS MATERIALIZED (
  SELECT 'pg_proc'::regclass::oid, p.oid ` + sqlGoes + `
  UNION ALL SELECT 'pg_class'::regclass, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ANY ($1)
  UNION ALL SELECT 'pg_type'::regclass, t.oid FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname = ANY ($1))
SELECT DISTINCT pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
  FROM pg_catalog.pg_depend d
  LEFT JOIN pg_catalog.pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
  LEFT JOIN pg_catalog.pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
  LEFT JOIN pg_catalog.pg_policy p ON d.classid = 'pg_policy'::regclass AND p.oid = d.objid
  LEFT JOIN pg_catalog.pg_class c ON c.oid = coalesce(r.ev_class, a.adrelid, p.polrelid)
  LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, 0) i
 WHERE d.deptype IN ('n', 'a') AND d.classid NOT IN ('pg_trigger'::regclass, 'pg_event_trigger'::regclass, 'pg_publication_rel'::regclass)
   AND i.type <> 'default acl'
   AND (d.refclassid, d.refobjid) IN (SELECT classid, objid FROM goes)
   AND (d.classid, d.objid) NOT IN (SELECT classid, objid FROM goes)
   AND coalesce(n.nspname, i.schema, '') <> ALL ($1)
 ORDER BY 1 LIMIT 10`

	// Event triggers are removed first, because they would run on the other drops.
	sqlDropsOfCode = `SELECT pg_catalog.format('DROP %s IF EXISTS %s CASCADE', CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
                         p.oid::regprocedure) ` + sqlGoes + `
 ORDER BY p.prorettype <> 'event_trigger'::regtype, p.oid`
)

const (
	// The owner of the event triggers, see fence.install_event_triggers, and whether this login may remove them.
	sqlEvents = `SELECT pg_catalog.pg_get_userbyid(n.nspowner), pg_catalog.pg_has_role(n.nspowner, 'USAGE')
  FROM pg_catalog.pg_namespace n
 WHERE n.nspname = 'fence_events' AND pg_catalog.obj_description(n.oid, 'pg_namespace') LIKE 'fencegate event triggers %'`

	sqlDropEvents = `DROP SCHEMA fence_events CASCADE`
)

// dropEvents removes the event triggers with the schema of their functions, before the guards that they protect.
func dropEvents(ctx context.Context, tx pgx.Tx) error {
	var installer string
	var may bool
	switch err := tx.QueryRow(ctx, sqlEvents).Scan(&installer, &may); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	case !may:
		return fmt.Errorf("the event triggers belong to %s: as that login, run fencegate fence events uninstall, then migrate down again", installer)
	}
	_, err := tx.Exec(ctx, sqlDropEvents)
	return wrap("remove the event triggers", err)
}

// dropCode removes the functions, and with them the guards of tables, before the state.
func dropCode(ctx context.Context, tx pgx.Tx, sets []installed) error {
	rows, _ := tx.Query(ctx, sqlDropsOfCode, schemasOf(sets), namesOf(sets)) // rows returns the error again
	drops, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, drop := range drops {
		if _, err := tx.Exec(ctx, drop); err != nil {
			return err
		}
	}
	return nil
}

// dropState reverts the steps of a set's state, newest first.
func dropState(ctx context.Context, tx pgx.Tx, set installed) error {
	steps, err := fs.Glob(set.State, "*.down.sql")
	if err != nil {
		return err
	}
	for _, step := range slices.Backward(steps) {
		if version, err := strconv.Atoi(step[:6]); err != nil || version > set.version {
			continue
		}
		text, err := fs.ReadFile(set.State, step)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, string(text)); err != nil {
			return fmt.Errorf("%s/state/%s: %w", set.Name, step, err)
		}
	}
	return nil
}

// sqlNothingRecorded reports whether the schema of the records is empty.
const sqlNothingRecorded = `SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = oid AND deptype = 'n')
  FROM pg_catalog.pg_namespace WHERE nspname = $1`

// forget removes the records of the removed sets, and the record's schema with the last one.
func (k kit) forget(ctx context.Context, tx pgx.Tx, which Set, all bool) error {
	var has bool
	if err := tx.QueryRow(ctx, sqlIsThere, schema+".code").Scan(&has); err != nil {
		return err
	}
	for _, set := range k {
		if !which.has(set.Name) && !all {
			continue
		}
		if _, err := tx.Exec(ctx, `DROP TABLE IF EXISTS `+stateTable(set.Name)); err != nil {
			return err
		}
		if has {
			if _, err := tx.Exec(ctx, `DELETE FROM fencegate.code WHERE name = $1`, set.Name); err != nil {
				return err
			}
		}
	}
	if !all {
		return nil
	}
	if _, err := tx.Exec(ctx, `DROP TABLE IF EXISTS fencegate.code`); err != nil {
		return err
	}
	var empty bool
	err := tx.QueryRow(ctx, sqlNothingRecorded, schema).Scan(&empty)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !empty {
		return nil
	} else if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sqlDropSchema)
	return err
}

// LockedError reports that other transactions use what is to be removed.
type LockedError struct {
	Tables []string // with their processes, at most ten
	cause  error
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("others' transactions hold the tables longer than it waits, and nothing was removed. "+
		"End them, or wait, and migrate down again: %s: %v", strings.Join(e.Tables, ", "), e.cause)
}

func (e *LockedError) Unwrap() error { return e.cause }

// sqlHolders lists the processes that hold a guarded table, or one of ours.
const sqlHolders = `SELECT DISTINCT pg_catalog.format('%s (process %s)', l.relation::regclass, l.pid)
  FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database b ON b.oid = l.database AND b.datname = current_database()
 WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
   AND (l.relation IN (SELECT t.tgrelid FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                         JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname IN ('fence', 'objects'))
     OR l.relation IN (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                        WHERE n.nspname IN ('fence', 'objects', 'fencegate') AND c.relkind IN ('r', 'v')))
 ORDER BY 1 LIMIT 10`

// locked returns the LockedError with the holders after the last try.
func (k kit) locked(ctx context.Context, conn *pgx.Conn, cause error) error {
	rows, _ := conn.Query(ctx, sqlHolders) // rows returns the error again
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return errors.Join(cause, err)
	}
	return &LockedError{Tables: tables, cause: cause}
}
