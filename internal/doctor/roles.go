package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const sqlRoles = `SELECT w.role, r.oid IS NOT NULL, coalesce(r.rolcanlogin, false), coalesce(r.rolsuper, false),
       coalesce(pg_has_role(r.oid, 'USAGE'), false),
       w.role <> 'fence_owner' AND coalesce(pg_has_role(r.oid, (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner'), 'MEMBER'), false)
  FROM unnest(ARRAY['fence_owner', 'fence_writer', 'fence_gateway']) w(role) LEFT JOIN pg_roles r ON r.rolname = w.role`

type role struct {
	Name                                           string
	Exists, Login, Superuser, Ours, MemberOfOwners bool
}

func checkRoles(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.roles"
	roles, err := collect[role](ctx, conn, sqlRoles)
	if err != nil {
		return []Finding{unseen(check, err)}
	}
	var found []Finding
	ours := map[string]bool{}
	for _, r := range roles {
		ours[r.Name] = r.Ours
		switch {
		case !r.Exists:
			found = append(found, fail(check, "there is no role "+r.Name, "CREATE ROLE "+r.Name+" NOLOGIN; then restore the schema's grants: fencegate migrate down --force, then up, forgets every fence, so prefer a restore of the roles (pg_dumpall --roles-only)."))
		case r.Login:
			found = append(found, warn(check, r.Name+" can log in: it is meant as a role to be granted", "ALTER ROLE "+r.Name+" NOLOGIN;"))
		case r.Superuser:
			found = append(found, fail(check, r.Name+" is a superuser", "ALTER ROLE "+r.Name+" NOSUPERUSER;"))
		case r.MemberOfOwners:
			found = append(found, fail(check, r.Name+" is a member of fence_owner, so whoever has it may change fences", "REVOKE fence_owner FROM "+r.Name+";"))
		}
	}
	if len(found) == 0 {
		found = []Finding{ok(check, "fence_owner, fence_writer and fence_gateway are as migrated")}
	}
	if !ours["fence_gateway"] {
		found = append(found, warn("postgresql.login", "this login is not in fence_gateway, so a gateway can't run as it", "For the gateway's login: GRANT fence_gateway TO …;"))
	} else {
		found = append(found, ok("postgresql.login", "this login may arm fences"))
	}
	found = append(found, checkPrivileges(ctx, conn)...)
	return append(found, checkSignal(ctx, conn))
}

// sqlPrivileges lists what is not as migrated: who owns what, who else may write the tables that hold the fences or call
// what only a gateway may, and what the roles lack. has_…_privilege fails for names that don't exist, so oids are asked for.
const sqlPrivileges = `
SELECT format('%s %s belongs to %s instead of fence_owner', 'schema', n.nspname, n.nspowner::regrole), format('ALTER SCHEMA %I OWNER TO fence_owner;', n.nspname)
  FROM pg_namespace n WHERE n.nspname = 'fence' AND n.nspowner <> (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner')
UNION ALL
SELECT format('%s belongs to %s instead of fence_owner', c.oid::regclass, c.relowner::regrole), format('ALTER TABLE %s OWNER TO fence_owner;', c.oid::regclass)
  FROM pg_class c WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind IN ('r', 'p', 'v')
   AND c.relowner <> (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner')
UNION ALL
SELECT format('function %s belongs to %s instead of fence_owner', p.oid::regprocedure, p.proowner::regrole), format('ALTER ROUTINE %s OWNER TO fence_owner;', p.oid::regprocedure)
  FROM pg_proc p WHERE p.pronamespace = 'fence'::regnamespace AND p.prosecdef
   AND p.proowner <> (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner') AND p.prorettype <> 'event_trigger'::regtype
UNION ALL
SELECT format('%s may %s %s', CASE a.grantee WHEN 0 THEN 'everybody' ELSE a.grantee::regrole::text END, a.privilege_type, c.oid::regclass),
       format('REVOKE %s ON %s FROM %s;', a.privilege_type, c.oid::regclass, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
  FROM pg_class c, aclexplode(c.relacl) a
 WHERE c.relnamespace = 'fence'::regnamespace AND c.relname IN ('resources', 'arms', 'epochs', 'registry') AND a.grantee <> c.relowner
   AND (a.privilege_type <> 'SELECT' OR c.relname = 'resources')
UNION ALL
SELECT format('%s may call %s', CASE a.grantee WHEN 0 THEN 'everybody' ELSE a.grantee::regrole::text END, p.oid::regprocedure),
       format('REVOKE ALL ON ROUTINE %s FROM %s;', p.oid::regprocedure, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
  FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
 WHERE p.pronamespace = 'fence'::regnamespace AND p.proname IN ('raise', 'drain', 'revoke', 'raise_epoch', 'check_issued', 'verify', 'invalidate_all')
   AND a.grantee NOT IN (p.proowner, coalesce((SELECT oid FROM pg_roles WHERE rolname = 'fence_gateway'), 0)) 
UNION ALL
SELECT format('%s may not call %s', w.role, p.oid::regprocedure), format('GRANT EXECUTE ON FUNCTION %s TO %s;', p.oid::regprocedure, w.role)
  FROM (VALUES ('fence_gateway', 'raise'), ('fence_gateway', 'drain'), ('fence_gateway', 'revoke'), ('fence_gateway', 'raise_epoch'), ('fence_gateway', 'check_issued'),
               ('fence_writer', 'use'), ('fence_writer', 'check'), ('fence_writer', 'guard')) w(role, name)
  JOIN pg_proc p ON p.pronamespace = 'fence'::regnamespace AND p.proname = w.name
  JOIN pg_roles r ON r.rolname = w.role WHERE NOT has_function_privilege(r.oid, p.oid, 'EXECUTE')
UNION ALL
SELECT format('%s may not use the schema fence', r.rolname), 'GRANT USAGE ON SCHEMA fence TO PUBLIC;'
  FROM pg_roles r WHERE r.rolname IN ('fence_writer', 'fence_gateway') AND NOT has_schema_privilege(r.oid, 'fence'::regnamespace, 'USAGE')`

type fault struct{ Found, Do string }

func checkPrivileges(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.privileges"
	faults, err := collect[fault](ctx, conn, sqlPrivileges)
	if err != nil {
		return []Finding{unseen(check, err)}
	}
	if len(faults) == 0 {
		return []Finding{ok(check, "nobody but fence_owner may write fences, and each role may do its part")}
	}
	found := make([]Finding, len(faults))
	for i, f := range faults {
		found[i] = fail(check, f.Found, f.Do)
	}
	return found
}

const sqlSignal = `SELECT coalesce((SELECT pg_has_role(oid, 'pg_signal_backend', 'USAGE') FROM pg_roles WHERE rolname = 'fence_owner'), false)`

func checkSignal(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.pg-signal-backend"
	var may bool
	if err := conn.QueryRow(ctx, sqlSignal).Scan(&may); err != nil {
		return unseen(check, err)
	}
	if !may {
		return warn(check, "fence_owner may not end stale transactions: arming fails with ZF005 as long as one is in flight",
			"As a superuser, or as what your provider gives for one: GRANT pg_signal_backend TO fence_owner;")
	}
	return ok(check, "fence_owner may end stale transactions")
}

const sqlEventTriggers = `SELECT e.evtname::text, e.evtenabled::text FROM pg_event_trigger e
  JOIN pg_proc p ON p.oid = e.evtfoid JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'fence' ORDER BY 1`

type eventTrigger struct{ Name, Enabled string }

func checkEventTriggers(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.event-triggers"
	triggers, err := collect[eventTrigger](ctx, conn, sqlEventTriggers)
	if err != nil {
		return unseen(check, err)
	}
	var names, off []string
	for _, t := range triggers {
		names = append(names, t.Name)
		if t.Enabled == "D" || t.Enabled == "R" {
			off = append(off, t.Name)
		}
	}
	switch {
	case len(triggers) == 0:
		return warn(check, "none: a table's owner can take a guard off, and new partitions come without one, until somebody looks at fence.uncovered",
			"As a superuser, or as what your provider gives for one: fencegate fence events install. Without: look regularly with fencegate fence uncovered.")
	case len(off) > 0:
		return fail(check, "disabled: "+strings.Join(off, ", "), fmt.Sprintf("ALTER EVENT TRIGGER %s ENABLE ALWAYS;", off[0]))
	}
	return ok(check, "%s", strings.Join(names, ", "))
}
