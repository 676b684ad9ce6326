package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/migrations"
)

const sqlRoles = `SELECT w.role, r.oid IS NOT NULL, coalesce(r.rolcanlogin, false), coalesce(r.rolsuper, false),
       coalesce(pg_has_role(r.oid, 'USAGE'), false),
       w.role <> 'fence_owner' AND coalesce(pg_has_role(r.oid, (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner'), 'MEMBER'), false)
  FROM unnest(ARRAY['fence_owner', 'fence_writer', 'fence_gateway', 'fence_protector', 'fence_locker']) w(role) LEFT JOIN pg_roles r ON r.rolname = w.role`

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
		found = []Finding{ok(check, "fence_owner, fence_writer, fence_gateway, fence_protector and fence_locker are as migrated")}
	}
	if !ours["fence_gateway"] {
		login := pgx.Identifier{conn.Config().User}.Sanitize()
		found = append(found, warn("postgresql.login", "this login is not in fence_gateway, so a gateway can't run as it",
			"Where it is the gateway's: GRANT fence_gateway TO "+login+"; otherwise run the doctor as the gateway's login."))
	} else {
		found = append(found, ok("postgresql.login", "this login may arm fences"))
	}
	found = append(found, checkPrivileges(ctx, conn)...)
	found = append(found, checkWriters(ctx, conn)...)
	return append(found, checkSignal(ctx, conn))
}

// sqlWriters lists the logins that write or arm and have too
// many rights. A superuser's implicit rights are no membership.
const sqlWriters = `
WITH RECURSIVE writers (role) AS (
  SELECT oid FROM pg_roles WHERE rolname IN ('fence_writer', 'fence_gateway')
  UNION SELECT m.member FROM pg_auth_members m JOIN writers w ON w.role = m.roleid
)
SELECT CASE WHEN r.rolsuper THEN format('%I is a superuser and writes or arms: it can take guards off, and its stale transactions can''t be ended', r.rolname)
            ELSE format('%I writes or arms and is in fence_owner, so it may change fences', r.rolname) END,
       CASE WHEN r.rolsuper THEN format('Let it write as another login; or ALTER ROLE %I NOSUPERUSER;', r.rolname)
            ELSE 'Let one login migrate, which is in fence_owner, and others write.' END
  FROM pg_roles r
 WHERE r.rolcanlogin AND r.oid IN (SELECT role FROM writers) AND (r.rolsuper OR pg_has_role(r.oid, to_regrole('fence_owner'), 'MEMBER'))
 ORDER BY 1`

func checkWriters(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.writers"
	faults, err := collect[fault](ctx, conn, sqlWriters)
	if err != nil {
		return []Finding{unseen(check, err)}
	}
	if len(faults) == 0 {
		return []Finding{ok(check, "no superuser is in fence_writer or fence_gateway, nor anybody of fence_owner")}
	}
	found := make([]Finding, len(faults))
	for i, f := range faults {
		found[i] = warn(check, f.Found, f.Do)
	}
	return found
}

// sqlPrivileges lists deviations from the migrated state: owners; others who may write the fences or call a function;
// and rights that the roles lack. $1 and $2 are pairs of a function and a role that may call it by the migrations. What
// they do not have is checkSchema's. has_…_privilege fails for missing names, so it gets oids.
const sqlPrivileges = `
WITH needs (name, role) AS (
  SELECT * FROM unnest($1::text[], $2::text[])
), functions AS (
  SELECT p.oid, p.proowner, p.proacl, n.nspname || '.' || p.proname || '(' || oidvectortypes(p.proargtypes) || ')' AS name
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname IN ('fence', 'objects')
), who AS (
  SELECT 0::oid AS role, 'everybody' AS name, 'PUBLIC' AS sql UNION ALL SELECT oid, rolname, quote_ident(rolname) FROM pg_roles
)
SELECT format('%s %s belongs to %s instead of fence_owner', 'schema', n.nspname, n.nspowner::regrole), format('ALTER SCHEMA %I OWNER TO fence_owner;', n.nspname)
  FROM pg_namespace n WHERE n.nspname = 'fence' AND n.nspowner <> (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner')
UNION ALL
SELECT format('%s belongs to %s instead of fence_owner', c.oid::regclass, c.relowner::regrole), format('ALTER TABLE %s OWNER TO fence_owner;', c.oid::regclass)
  FROM pg_class c WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind IN ('r', 'p', 'v')
   AND c.relowner <> (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner')
UNION ALL
SELECT format('function %s belongs to %s instead of fence_owner', f.oid::regprocedure, f.proowner::regrole), format('ALTER ROUTINE %s OWNER TO fence_owner;', f.oid::regprocedure)
  FROM functions f JOIN pg_proc p ON p.oid = f.oid
 WHERE (f.name IN (SELECT n.name FROM needs n) OR p.pronamespace = 'fence'::regnamespace AND p.prosecdef)
   AND p.proowner <> (SELECT oid FROM pg_roles WHERE rolname = 'fence_owner') AND p.prorettype <> 'event_trigger'::regtype
UNION ALL
SELECT format('%s may %s %s', w.name, a.privilege_type, c.oid::regclass), format('REVOKE %s ON %s FROM %s;', a.privilege_type, c.oid::regclass, w.sql)
  FROM pg_class c, aclexplode(c.relacl) a JOIN who w ON w.role = a.grantee
 WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind IN ('r', 'v') AND a.grantee <> c.relowner
   AND (a.privilege_type <> 'SELECT' OR c.relkind = 'r' AND c.relname <> 'registry')   -- the views are for reading
UNION ALL   -- some columns alone
SELECT format('%s may %s %s (%I)', w.name, a.privilege_type, c.oid::regclass, t.attname), format('REVOKE %s (%I) ON %s FROM %s;', a.privilege_type, t.attname, c.oid::regclass, w.sql)
  FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a JOIN who w ON w.role = a.grantee
 WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind IN ('r', 'v') AND a.grantee <> c.relowner
   AND (a.privilege_type <> 'SELECT' OR c.relkind = 'r' AND c.relname <> 'registry')
UNION ALL   -- what lists the objects
SELECT format('%s may %s %s', w.name, a.privilege_type, c.oid::regclass), format('REVOKE %s ON %s FROM %s;', a.privilege_type, c.oid::regclass, w.sql)
  FROM pg_class c, aclexplode(c.relacl) a JOIN who w ON w.role = a.grantee
 WHERE c.relnamespace = to_regnamespace('objects') AND c.relkind IN ('r', 'v') AND a.grantee <> c.relowner AND a.privilege_type <> 'SELECT'
UNION ALL   -- a function that fits a call better than fence's own would run with the owner's rights
SELECT format('%s may make functions in the schema %I', w.name, n.nspname), format('REVOKE CREATE ON SCHEMA %I FROM %s;', n.nspname, w.sql)
  FROM pg_namespace n, aclexplode(n.nspacl) a JOIN who w ON w.role = a.grantee
 WHERE n.nspname IN ('fence', 'objects') AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
UNION ALL
SELECT format('%s is in pg_write_all_data, so it may write fences', m.member::regrole), format('REVOKE pg_write_all_data FROM %s;', m.member::regrole)
  FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member WHERE m.roleid = to_regrole('pg_write_all_data') AND NOT r.rolsuper
UNION ALL
SELECT format('%s may call %s', w.name, f.oid::regprocedure), format('REVOKE ALL ON ROUTINE %s FROM %s;', f.oid::regprocedure, w.sql)
  FROM functions f, aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a JOIN who w ON w.role = a.grantee
 WHERE a.grantee <> f.proowner AND f.name IN (SELECT n.name FROM needs n)
   AND f.name NOT IN (SELECT n.name FROM needs n WHERE n.role IN ('PUBLIC', 'fence_writer', w.name))   -- what writers may call does no harm
UNION ALL
SELECT format('%s may not call %s', n.role, f.oid::regprocedure), format('GRANT EXECUTE ON ROUTINE %s TO %s;', f.oid::regprocedure, n.role)
  FROM needs n JOIN functions f ON f.name = n.name JOIN pg_roles r ON r.rolname = n.role
 WHERE NOT has_function_privilege(r.oid, f.oid, 'EXECUTE') AND (n.role <> 'fence_owner' OR f.proowner = r.oid)
UNION ALL
SELECT format('not every role may call %s', f.oid::regprocedure), format('GRANT EXECUTE ON ROUTINE %s TO PUBLIC;', f.oid::regprocedure)
  FROM needs n JOIN functions f ON f.name = n.name
 WHERE n.role = 'PUBLIC' AND EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN ('fence_writer', 'fence_gateway', 'fence_protector', 'fence_locker')
                                                              AND NOT has_function_privilege(r.oid, f.oid, 'EXECUTE'))
UNION ALL
SELECT format('%s may not use the schema fence', r.rolname), 'GRANT USAGE ON SCHEMA fence TO PUBLIC;'
  FROM pg_roles r WHERE r.rolname IN ('fence_writer', 'fence_gateway', 'fence_protector', 'fence_locker') AND NOT has_schema_privilege(r.oid, 'fence'::regnamespace, 'USAGE')
ORDER BY 1`

// callers returns the pairs of a function and a role that may call it by the migrations. The owner may call each.
func callers() (functions, roles []string, err error) {
	for _, name := range []string{"fence", "objects"} {
		set, err := migrations.Load(migrations.FS, name)
		if err != nil {
			return nil, nil, err
		}
		for function, may := range set.Code.Callers() {
			for _, role := range append([]string{"fence_owner"}, may...) {
				functions, roles = append(functions, function), append(roles, role)
			}
		}
	}
	return functions, roles, nil
}

func checkPrivileges(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.privileges"
	functions, roles, err := callers()
	if err != nil {
		return []Finding{unseen(check, err)}
	}
	faults, err := collect[fault](ctx, conn, sqlPrivileges, functions, roles)
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
