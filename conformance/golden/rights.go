package main

import (
	"context"
	"os/exec"
	"slices"
	"strings"
)

// sqlRights lists by object which of fencegate's roles and PUBLIC have which effective privileges, inherited ones
// included. Owners are listed too.
const sqlRights = `
WITH roles AS (
  SELECT rolname::text AS role, oid FROM pg_roles WHERE rolname LIKE 'fence\_%' UNION ALL SELECT 'stranger', oid FROM pg_roles WHERE rolname = 'stranger_trust'
), objects AS (
  SELECT 'schema' AS kind, nspname::text AS name, oid, nspowner AS owner, ARRAY['USAGE', 'CREATE'] AS privileges
    FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'
  UNION ALL
  SELECT CASE c.relkind WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' ELSE 'table' END, n.nspname || '.' || c.relname, c.oid, c.relowner,
    CASE c.relkind WHEN 'S' THEN ARRAY['USAGE', 'SELECT', 'UPDATE'] ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'] END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND n.nspname IN ('fence', 'objects')
  UNION ALL
  SELECT CASE p.prosecdef WHEN true THEN 'definer' ELSE 'function' END, n.nspname || '.' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', p.oid, p.proowner, ARRAY['EXECUTE']
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname IN ('fence', 'objects')
  UNION ALL
  SELECT 'type', n.nspname || '.' || t.typname, t.oid, t.typowner, ARRAY['USAGE']
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname IN ('fence', 'objects') AND t.typtype IN ('e', 'd')
), rights AS (
  SELECT o.kind, o.name, o.owner, r.role, p.privilege, CASE o.kind
      WHEN 'schema' THEN has_schema_privilege(r.oid, o.oid, p.privilege)
      WHEN 'sequence' THEN has_sequence_privilege(r.oid, o.oid, p.privilege)
      WHEN 'type' THEN has_type_privilege(r.oid, o.oid, p.privilege)
      WHEN 'function' THEN has_function_privilege(r.oid, o.oid, p.privilege)
      WHEN 'definer' THEN has_function_privilege(r.oid, o.oid, p.privilege)
      ELSE has_table_privilege(r.oid, o.oid, p.privilege) END AS may
    FROM objects o CROSS JOIN roles r CROSS JOIN LATERAL unnest(o.privileges) WITH ORDINALITY AS p(privilege, n)
)
SELECT format('%-8s %s, of %s: %s', kind, name, CASE WHEN owner::regrole::text LIKE 'fence\_%' THEN owner::regrole::text ELSE 'a superuser or the database''s owner' END,
  coalesce(string_agg(role || ' ' || privileges, '; ' ORDER BY role), 'nobody'))
FROM (SELECT kind, name, owner, role, string_agg(privilege, ' ' ORDER BY privilege) AS privileges FROM rights WHERE may GROUP BY kind, name, owner, role) held
GROUP BY kind, name, owner ORDER BY kind, name COLLATE "C"`

// sqlRoles lists the roles with their attributes and members.
const sqlRoles = `
SELECT format('%s: login %s, superuser %s, create role %s, create database %s, replication %s, bypass RLS %s, inherits %s; member of %s', r.rolname, r.rolcanlogin, r.rolsuper, r.rolcreaterole,
  r.rolcreatedb, r.rolreplication, r.rolbypassrls, r.rolinherit,
  coalesce((SELECT string_agg(m.roleid::regrole::text || CASE WHEN m.admin_option THEN ' (admin)' ELSE '' END, ', ' ORDER BY m.roleid::regrole::text) FROM pg_auth_members m WHERE m.member = r.oid), 'none'))
FROM pg_roles r WHERE r.rolname LIKE 'fence\_%' ORDER BY r.rolname`

// sqlColumns lists rights on single columns.
const sqlColumns = `
SELECT format('%s.%s.%s: %s', n.nspname, c.relname, a.attname, (SELECT string_agg(e.grantee::regrole || ' ' || e.privilege_type, ', ' ORDER BY e.grantee::regrole::text, e.privilege_type) FROM aclexplode(a.attacl) e))
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('fence', 'objects') AND a.attacl IS NOT NULL ORDER BY 1`

// sqlDefaults lists default privileges and event triggers.
const sqlDefaults = `
SELECT format('default privileges of %s in %s: %s %s', d.defaclrole::regrole, coalesce(n.nspname, 'any schema'), d.defaclobjtype, d.defaclacl)
FROM pg_default_acl d LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace WHERE d.defaclrole::regrole::text LIKE 'fence\_%'
UNION ALL SELECT format('event trigger %s on %s, enabled %s, of %s', evtname, evtevent, evtenabled, CASE WHEN evtowner::regrole::text LIKE 'fence\_%' THEN evtowner::regrole::text ELSE 'a superuser' END) FROM pg_event_trigger
ORDER BY 1`

// playRights lists who may do what in PostgreSQL.
func playRights(ctx context.Context, w *world, b *book) error {
	for _, q := range []struct{ title, sql string }{
		{"roles", sqlRoles}, {"rights by object, of fencegate's roles and of a stranger, who has what PUBLIC has", sqlRights}, {"rights on columns", sqlColumns}, {"default privileges, event triggers", sqlDefaults},
	} {
		b.part(q.title)
		rows, err := w.admin.Query(ctx, q.sql)
		if err != nil {
			return err
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				return err
			}
			b.linef("%s", line)
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	return nil
}

// playHelp prints every command's help.
func playHelp(ctx context.Context, w *world, b *book) error {
	return help(ctx, w, b, nil)
}

func help(ctx context.Context, w *world, b *book, command []string) error {
	out, err := exec.CommandContext(ctx, w.binary, append(command, "--help")...).CombinedOutput()
	if err != nil {
		return err
	}
	b.part("fencegate " + strings.Join(command, " "))
	b.lines("", string(out))
	_, list, _ := strings.Cut(string(out), "Available Commands:\n")
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		if len(words) == 0 {
			break
		}
		if words[0] == "help" || words[0] == "completion" {
			continue
		}
		if err := help(ctx, w, b, append(slices.Clip(command), words[0])); err != nil {
			return err
		}
	}
	return nil
}
