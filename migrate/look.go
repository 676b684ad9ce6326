package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

// Look reports how far the database is migrated. Any login may call it. It changes nothing.
func Look(ctx context.Context, url string, which Set) (Status, error) {
	k, err := embedded()
	if err != nil {
		return Status{}, err
	}
	return k.lookAt(ctx, url, which)
}

func (k kit) lookAt(ctx context.Context, url string, which Set) (Status, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return Status{}, fmt.Errorf("migrate status: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	status, err := k.look(ctx, conn, which)
	return status, wrap("migrate status", err)
}

func (k kit) look(ctx context.Context, conn *pgx.Conn, which Set) (status Status, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		status, err = k.lookIn(ctx, tx, which)
		return err
	})
	return status, err
}

// lookIn looks in a transaction, and sets its search_path.
func (k kit) lookIn(ctx context.Context, tx pgx.Tx, which Set) (status Status, err error) {
	if _, err := tx.Exec(ctx, sqlPlain); err != nil {
		return status, err
	}
	if err := mayRead(ctx, tx); err != nil {
		return status, err
	}
	var preRelease bool
	if err := tx.QueryRow(ctx, sqlPreRelease).Scan(&preRelease); err != nil {
		return status, err
	}
	code, err := recordedCode(ctx, tx)
	if err != nil {
		return status, err
	}
	for _, set := range k {
		if !which.has(set.Name) {
			continue
		}
		s, err := lookAtSet(ctx, tx, set)
		if err != nil {
			return status, err
		}
		if preRelease && s.Other == nil {
			s.Other = &OtherBaselineError{Set: set.Name, Record: "the table fencegate.migrations", Want: stateNote(set, set.Latest)}
		}
		status.MinProgram = max(status.MinProgram, code[set.Name].minProgram)
		status.Sets = append(status.Sets, s)
	}
	if status.Other() == nil {
		status.Missing, status.Outside, err = k.strangers(ctx, tx, status)
	}
	return status, err
}

func lookAtSet(ctx context.Context, conn querier, set migrations.Set) (SetStatus, error) {
	s := SetStatus{Set: set.Name, Latest: set.Latest, LatestRevision: set.Code.Revision}
	want := stateNote(set, set.Latest)
	if err := conn.QueryRow(ctx, sqlIsThere, stateTable(set.Name)).Scan(&s.recorded); err != nil {
		return s, err
	}
	version, has := int64(-1), s.recorded // also if the removal of the first step was interrupted
	if s.recorded {
		err := conn.QueryRow(ctx, `SELECT version, dirty FROM `+stateTable(set.Name)).Scan(&version, &s.Dirty)
		if has = !errors.Is(err, pgx.ErrNoRows); has && err != nil {
			return s, err
		}
	}
	note, err := readNote(ctx, conn, set)
	if err == nil && note.known && note.version >= 0 { // a schema without a note may be the users', who migrate nothing
		err = mayTrust(ctx, conn, set.Name)
	}
	switch {
	case err != nil:
		return s, err
	case note.other != "":
		s.Other = &OtherBaselineError{Set: set.Name, Record: fmt.Sprintf("the comment %q", note.other), Want: want}
	case !note.known && version > int64(set.Latest):
		s.Other = &OtherBaselineError{Set: set.Name, Record: fmt.Sprintf("version %d in %s", version, stateTable(set.Name)), Want: want}
	case !note.known && version > 0:
		s.Other = &OtherBaselineError{Set: set.Name, Want: want}
	case !has: // a dump without the record, or migrated by other means
	case note.version < 0 && version > 0 && !s.Dirty:
		s.Gone = true
	case int64(note.version) != version:
		s.Dirty = true
	}
	s.Version, s.Revision, s.Hash = max(note.version, 0), note.revision, note.hash
	s.Changed = s.Revision == set.Code.Revision && s.Hash != short(set.Code.Hash)
	return s, nil
}

const (
	// The functions and views in our schemas, named as in migrations.Code,
	// without those that fence.protect makes for a table.
	sqlNames = `SELECT n.nspname || '.' || p.proname || '(' || pg_catalog.oidvectortypes(p.proargtypes) || ')'
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname IN ('fence', 'objects') AND NOT (n.nspname = 'fence' AND p.prokind = 'f' AND (
   p.proname ~ '^(rows|stamp|moved)_[0-9]+$' AND p.pronargs = 0 AND p.prorettype = 'pg_catalog.trigger'::pg_catalog.regtype
   OR p.proname ~ '^resource_of_[0-9]+$' AND EXISTS (SELECT FROM pg_catalog.pg_proc r
     WHERE r.pronamespace = p.pronamespace AND r.proname = pg_catalog.replace(p.proname, 'resource_of_', 'rows_') AND r.pronargs = 0)))
UNION ALL
SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname IN ('fence', 'objects') AND c.relkind IN ('v', 'm')
 ORDER BY 1`
	sqlNoPath = `SET LOCAL search_path = pg_catalog, pg_temp`
)

// strangers compares the functions and views in the database with those of the sets. missing lists what sets that are
// up to date lack; outside lists what no set has, if all sets are up to date.
func (k kit) strangers(ctx context.Context, tx pgx.Tx, status Status) (missing, outside []string, err error) {
	var want, known []string
	others := false // a set's code differs from this program's, so its functions are unknown
	for _, set := range k {
		known = append(known, set.Code.Names()...)
		if s, ok := status.of(set.Name); ok && s.upToDate() {
			want = append(want, set.Code.Names()...)
		} else if ok && s.Version > 0 {
			others = true
		}
	}
	if len(want) == 0 {
		return nil, nil, nil
	}
	var has []string
	rows, _ := tx.Query(ctx, sqlNames) // rows returns the error again
	if has, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, nil, err
	}
	without := func(list, other []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(f string) bool { return slices.Contains(other, f) })
	}
	missing = without(want, has)
	if !others {
		outside = without(has, known)
	}
	return missing, outside, nil
}
