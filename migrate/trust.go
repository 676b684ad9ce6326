package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// querier is a connection, or a transaction on one.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Each look and each change begins with these settings, so that the login's own settings do not change how names are
// resolved and printed. A session that migrates has no timeouts of the login's either: it waits until it is
// interrupted, and a step takes as long as it needs. transaction_timeout exists from PostgreSQL 17 on.
const (
	sqlPlain   = `SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL quote_all_identifiers = off`
	sqlSession = `SET search_path = pg_catalog, pg_temp; SET quote_all_identifiers = off; SELECT pg_catalog.set_config(s.name, '0', false) ` + sqlTimeouts

	sqlTimeouts = `FROM pg_catalog.pg_settings s
 WHERE s.name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout')`
)

// A role that may create a schema can prepare one named fencegate. A view, rule, trigger or policy in it runs its
// owner's code with the rights of the login that reads or writes it, which is often a superuser. So the catalogue is
// checked first. Nothing here names a relation outside of pg_catalog.
const (
	// What can't be read without running another role's code. The planner evaluates constant expressions in indexes,
	// constraints and statistics.
	sqlUnreadable = `SELECT object, owner, why FROM (
  SELECT 'fencegate.' || c.relname AS object, pg_catalog.pg_get_userbyid(c.relowner)::text AS owner, CASE
    WHEN c.relkind <> 'r' THEN 'is not a table'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_rewrite x WHERE x.ev_class = c.oid) THEN 'has a rule'
    WHEN c.relrowsecurity THEN 'has row-level security'
    WHEN NOT pg_catalog.pg_has_role(c.relowner, n.nspowner, 'MEMBER') THEN 'is not of the owner of its schema'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits x WHERE x.inhparent = c.oid) THEN 'has tables that inherit it'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_index x WHERE x.indrelid = c.oid AND (x.indexprs IS NOT NULL OR x.indpred IS NOT NULL))
      OR EXISTS (SELECT FROM pg_catalog.pg_constraint x WHERE x.conrelid = c.oid AND x.contype = 'c')
      OR EXISTS (SELECT FROM pg_catalog.pg_statistic_ext x WHERE x.stxrelid = c.oid)
      OR EXISTS (SELECT FROM pg_catalog.pg_attribute x WHERE x.attrelid = c.oid AND x.attgenerated <> '') THEN 'computes expressions'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_attribute x JOIN pg_catalog.pg_type t ON t.oid = x.atttypid
                  WHERE x.attrelid = c.oid AND x.attnum > 0 AND t.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace) THEN 'has a column of a type that is not PostgreSQL''s'
    END AS why
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = 'fencegate' AND c.relname IN ('code', 'fence_state', 'objects_state')) x
 WHERE why IS NOT NULL ORDER BY object LIMIT 1`

	// The tables that are read. Locks keep them unchanged while they are checked and read.
	sqlRead = `SELECT pg_catalog.format('LOCK TABLE fencegate.%I IN ACCESS SHARE MODE', c.relname)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'fencegate' AND c.relname IN ('code', 'fence_state', 'objects_state') ORDER BY c.relname`

	// What can't be written. All must belong to a superuser, to this login, or to a role of which it is a member. A
	// superuser counts as a member of every role, so the memberships are looked up.
	sqlUnwritable = `WITH RECURSIVE trusted AS (
  SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper OR r.rolname = current_user
  UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN trusted t ON t.oid = m.member
                        JOIN pg_catalog.pg_roles r ON r.oid = t.oid AND (NOT r.rolsuper OR r.rolname = current_user)
), record AS (SELECT n.oid, n.nspowner, n.nspacl FROM pg_catalog.pg_namespace n WHERE n.nspname = 'fencegate')
SELECT object, owner, why FROM (
  SELECT 1 AS place, 'the schema fencegate' AS object, pg_catalog.pg_get_userbyid(n.nspowner)::text AS owner, CASE
    WHEN n.nspowner NOT IN (SELECT oid FROM trusted) THEN 'is not of this login, nor of a role that it is in'
    WHEN EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee NOT IN (SELECT oid FROM trusted)) THEN 'lets others create things'
    END AS why FROM record n
  UNION ALL
  SELECT 2, 'fencegate.' || c.relname, pg_catalog.pg_get_userbyid(c.relowner)::text, CASE
    WHEN c.relkind <> 'r' THEN 'is not a table'
    WHEN c.relowner NOT IN (SELECT oid FROM trusted) THEN 'is not of this login, nor of a role that it is in'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger x WHERE x.tgrelid = c.oid) THEN 'has a trigger'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_rewrite x WHERE x.ev_class = c.oid) THEN 'has a rule'
    WHEN c.relrowsecurity THEN 'has row-level security'
    END
    FROM record n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid WHERE c.relkind NOT IN ('i', 't')) x
 WHERE why IS NOT NULL ORDER BY place, object LIMIT 1`
)

// ForeignRecordError reports that an object in the schema fencegate is not this package's record. It is neither read
// nor written, because that could run its owner's code with this login's rights.
type ForeignRecordError struct {
	Object string // the schema, or a relation in it
	Owner  string
	Why    string
}

func (e *ForeignRecordError) Error() string {
	return fmt.Sprintf("%s %s (its owner is %s): it is not used, because it could run that role's code with this login's rights. "+
		"If %[3]s is who migrates this database, migrate as that login, or give the schema fencegate and its tables to this one (ALTER SCHEMA, ALTER TABLE ... OWNER TO). "+
		"If not, look at it, and DROP SCHEMA fencegate CASCADE; migrate up rebuilds the record from the comments on the schemas", e.Object, e.Why, e.Owner)
}

// A role that may create a schema can prepare one named fence or objects too, with a note that says what is applied. What
// migrates it runs the triggers and functions in it as fence_owner, in this login's session. So a note counts only if
// the schema and all that is in it belong to fence_owner. Who is in fence_owner, as a superuser is, counts as fence_owner
// inside the schema. A schema that has passed once can't be exchanged by others.
const sqlForeignIn = `SELECT object, owner, why FROM (
  SELECT 1 AS place, 'the schema %[1]s' AS object, pg_catalog.pg_get_userbyid(n.nspowner)::text AS owner, CASE
    WHEN n.oid IS NULL THEN 'is gone'
    WHEN n.nspowner IS DISTINCT FROM pg_catalog.to_regrole('fence_owner')::oid THEN 'is not of fence_owner'
    WHEN EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE'
                    AND (a.grantee = 0 OR NOT pg_catalog.pg_has_role(a.grantee, n.nspowner, 'MEMBER'))) THEN 'lets others create things'
    END AS why FROM (SELECT) one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = '%[1]s'
  UNION ALL
  SELECT 2, x.kind || ' %[1]s.' || x.name, pg_catalog.pg_get_userbyid(x.owner)::text, 'is not of fence_owner'
    FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL (
      SELECT 'the relation' AS kind, c.relname::text AS name, c.relowner AS owner FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid
      UNION ALL SELECT 'the type', t.typname::text, t.typowner FROM pg_catalog.pg_type t WHERE t.typnamespace = n.oid
      UNION ALL SELECT 'the function', p.proname::text, p.proowner FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid) x
   WHERE n.nspname = '%[1]s' AND NOT pg_catalog.pg_has_role(x.owner, n.nspowner, 'MEMBER')) x
 WHERE why IS NOT NULL ORDER BY place, object LIMIT 1`

// ForeignSchemaError reports that the schema of a set, or an object in it, is not fencegate's. The schema is not
// migrated, and the note on it not believed, because that could run its owner's code with this login's rights.
type ForeignSchemaError struct {
	Schema string
	Object string // the schema, or an object in it
	Owner  string // of the object
	Why    string
}

func (e *ForeignSchemaError) Error() string {
	return fmt.Sprintf("%[1]s %[2]s (its owner is %[3]s): the schema %[4]s is not used, because it could run that role's code with this login's rights. "+
		"Look at it. If it is not fencegate's, DROP SCHEMA %[4]s CASCADE. If it is, as after a restore without owners, "+
		"give it and all that is in it to fence_owner (ALTER ... OWNER TO fence_owner), and take the right to create things in it from others", e.Object, e.Why, e.Owner, e.Schema)
}

// mayTrust refuses a schema of a set that is not, with all that is in it, of fence_owner, and one that is gone.
func mayTrust(ctx context.Context, db querier, set string) error {
	e := ForeignSchemaError{Schema: set}
	var owner *string
	switch err := db.QueryRow(ctx, fmt.Sprintf(sqlForeignIn, set)).Scan(&e.Object, &owner, &e.Why); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read the owner of the schema %s: %w", set, err)
	case owner == nil:
		return fmt.Errorf("the schema %s was dropped in the meantime: migrate again", set)
	}
	e.Owner = *owner
	return &e
}

// mayRead refuses a record that is not plain tables. tx must have begun with sqlPlain.
func mayRead(ctx context.Context, tx pgx.Tx) error {
	if err := foreign(ctx, tx, sqlUnreadable); err != nil {
		return err
	}
	rows, _ := tx.Query(ctx, sqlRead) // rows returns the error again
	locks, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, lock := range locks {
		if _, err := tx.Exec(ctx, lock); err != nil {
			return err
		}
	}
	return foreign(ctx, tx, sqlUnreadable)
}

// mayWrite refuses a record that could have been prepared by a role that this login has no reason to trust.
func mayWrite(ctx context.Context, db querier) error { return foreign(ctx, db, sqlUnwritable) }

func foreign(ctx context.Context, db querier, sql string) error {
	var e ForeignRecordError
	switch err := db.QueryRow(ctx, sql).Scan(&e.Object, &e.Owner, &e.Why); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read the owner of the record of migrations: %w", err)
	}
	return &e
}
