-- Everything that fencegate's schemas consist of, as text: one block for each thing, in a fixed order. search_path must be
-- empty. Owners and grantees other than fencegate's roles are the login that migrates, whatever its name.
WITH ours AS (
  SELECT n.oid, n.nspname, n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname IN ('fence', 'fencegate', 'objects')
), who AS (
  SELECT r.oid, CASE WHEN r.rolname LIKE 'fence\_%' THEN r.rolname ELSE '(who migrates)' END AS name FROM pg_roles r
  UNION ALL SELECT 0, 'PUBLIC'
), things (place, kind, oid, head) AS (
  SELECT n.nspname, 1, n.oid, format('SCHEMA %I', n.nspname) FROM ours n
  UNION ALL
  SELECT n.nspname, 2, c.oid,
         format('TYPE %I.%I AS (%s)', n.nspname, c.relname,
                (SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
                   FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped))
    FROM pg_class c JOIN ours n ON n.oid = c.relnamespace WHERE c.relkind = 'c'
  UNION ALL
  SELECT n.nspname, 2, t.oid,
         format('TYPE %I.%I (%s) %s', n.nspname, t.typname, t.typtype,
                (SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid))
    FROM pg_type t JOIN ours n ON n.oid = t.typnamespace WHERE t.typtype NOT IN ('c', 'b')
  UNION ALL
  SELECT n.nspname, 3, c.oid,
         format('SEQUENCE %I.%I AS %s START %s INCREMENT %s MINVALUE %s MAXVALUE %s CACHE %s%s', n.nspname, c.relname,
                format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
                CASE WHEN s.seqcycle THEN ' CYCLE' END)
    FROM pg_class c JOIN ours n ON n.oid = c.relnamespace JOIN pg_sequence s ON s.seqrelid = c.oid
  UNION ALL
  SELECT n.nspname, CASE c.relkind WHEN 'v' THEN 5 ELSE 4 END, c.oid,
         concat(CASE c.relpersistence WHEN 'u' THEN 'UNLOGGED ' END,
                CASE c.relkind WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'PARTITIONED TABLE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' END,
                format(' %I.%I', n.nspname, c.relname), ' WITH (' || array_to_string(c.reloptions, ', ') || ')',
                CASE WHEN c.relrowsecurity THEN ' ROW LEVEL SECURITY' END, CASE WHEN c.relforcerowsecurity THEN ' FORCED' END,
                CASE WHEN c.relkind = 'r' AND c.relreplident <> 'd' THEN ' REPLICA IDENTITY ' || c.relreplident::text END)
    FROM pg_class c JOIN ours n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm')
  UNION ALL
  SELECT n.nspname, 6, p.oid,
         concat(CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
                format(' %I.%I(%s)', n.nspname, p.proname, pg_get_function_arguments(p.oid)),
                ' RETURNS ' || pg_get_function_result(p.oid))
    FROM pg_proc p JOIN ours n ON n.oid = p.pronamespace
), lines (place, kind, oid, part, nth, line) AS (
  SELECT t.place, t.kind, t.oid, 0, 0, t.head FROM things t
  UNION ALL   -- columns
  SELECT t.place, t.kind, t.oid, 1, a.attnum,
         concat(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)),
                CASE WHEN t.kind = 4 AND a.attcollation <> y.typcollation THEN format(' COLLATE %I', o.collname) END,
                CASE WHEN a.attnotnull THEN ' NOT NULL' END,
                CASE WHEN a.attgenerated <> '' THEN ' GENERATED' END, CASE WHEN a.attidentity <> '' THEN ' IDENTITY' END,
                ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
                CASE WHEN a.attcompression <> '' THEN ' COMPRESSION ' || a.attcompression::text END,
                CASE WHEN a.attstorage <> y.typstorage THEN ' STORAGE ' || a.attstorage::text END,
                -- PostgreSQL 15.20 notes a version of its own among the options.
                ' OPTIONS ' || (SELECT string_agg(o, ', ') FROM unnest(a.attoptions) o WHERE o NOT LIKE 'pg_attver=%'), ' ACL ' || a.attacl::text)
    FROM things t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type y ON y.oid = a.atttypid LEFT JOIN pg_collation o ON o.oid = a.attcollation
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   WHERE t.kind IN (4, 5)
  UNION ALL
  SELECT t.place, t.kind, t.oid, 2, 0,
         format('CONSTRAINT %I %s%s', k.conname, pg_get_constraintdef(k.oid), CASE WHEN NOT k.convalidated THEN ' NOT VALID' END)
    FROM things t JOIN pg_constraint k ON k.conrelid = t.oid WHERE t.kind = 4
  UNION ALL
  SELECT t.place, t.kind, t.oid, 3, 0, concat(pg_get_indexdef(i.indexrelid), CASE WHEN NOT i.indisvalid THEN ' INVALID' END,
                                              CASE WHEN i.indisclustered THEN ' CLUSTERED' END)
    FROM things t JOIN pg_index i ON i.indrelid = t.oid WHERE t.kind = 4
  UNION ALL
  SELECT t.place, t.kind, t.oid, 4, 0, concat(pg_get_triggerdef(g.oid), ' ENABLED ' || nullif(g.tgenabled, 'O')::text)
    FROM things t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal WHERE t.kind IN (4, 5)
  UNION ALL
  SELECT t.place, t.kind, t.oid, 5, 0, format('POLICY %I', p.polname) FROM things t JOIN pg_policy p ON p.polrelid = t.oid
   WHERE t.kind IN (4, 5)
  UNION ALL
  SELECT t.place, t.kind, t.oid, 6, 0, pg_get_ruledef(r.oid) FROM things t JOIN pg_rewrite r ON r.ev_class = t.oid AND r.rulename <> '_RETURN'
   WHERE t.kind IN (4, 5)
  UNION ALL
  SELECT t.place, t.kind, t.oid, 7, l.nth, rtrim(l.line)
    FROM things t, LATERAL string_to_table(pg_get_viewdef(t.oid), E'\n') WITH ORDINALITY l(line, nth) WHERE t.kind = 5
  UNION ALL
  SELECT t.place, t.kind, t.oid, 8, 0,
         concat(l.lanname, CASE p.provolatile WHEN 'i' THEN ' IMMUTABLE' WHEN 's' THEN ' STABLE' ELSE ' VOLATILE' END,
                CASE WHEN p.prosecdef THEN ' SECURITY DEFINER' END, CASE WHEN p.proisstrict THEN ' STRICT' END,
                CASE WHEN p.proleakproof THEN ' LEAKPROOF' END,
                CASE p.proparallel WHEN 's' THEN ' PARALLEL SAFE' WHEN 'r' THEN ' PARALLEL RESTRICTED' END,
                ' COST ' || p.procost, ' ROWS ' || nullif(p.prorows, 0), ' SUPPORT ' || nullif(p.prosupport::oid, 0)::text)
    FROM things t JOIN pg_proc p ON p.oid = t.oid JOIN pg_language l ON l.oid = p.prolang WHERE t.kind = 6
  UNION ALL
  SELECT t.place, t.kind, t.oid, 9, s.nth, 'SET ' || s.setting
    FROM things t JOIN pg_proc p ON p.oid = t.oid, LATERAL unnest(p.proconfig) WITH ORDINALITY s(setting, nth) WHERE t.kind = 6
  UNION ALL
  SELECT t.place, t.kind, t.oid, 10, 0,
         'body ' || left(encode(sha256(convert_to(concat(p.prosrc, pg_get_function_sqlbody(p.oid)), 'UTF8')), 'hex'), 32)
    FROM things t JOIN pg_proc p ON p.oid = t.oid WHERE t.kind = 6
  UNION ALL
  SELECT t.place, t.kind, t.oid, 11, 0, 'OWNER ' || w.name
    FROM things t JOIN who w ON w.oid = coalesce((SELECT n.nspowner FROM ours n WHERE t.kind = 1 AND n.oid = t.oid),
                                                 (SELECT c.relowner FROM pg_class c WHERE t.kind BETWEEN 2 AND 5 AND c.oid = t.oid),
                                                 (SELECT y.typowner FROM pg_type y WHERE t.kind = 2 AND y.oid = t.oid),
                                                 (SELECT p.proowner FROM pg_proc p WHERE t.kind = 6 AND p.oid = t.oid))
  UNION ALL   -- who may do what, beside the owner
  SELECT t.place, t.kind, t.oid, 12, 0,
         concat('GRANT ', string_agg(x.privilege_type || CASE WHEN x.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END, ', ' ORDER BY x.privilege_type),
                ' TO ', w.name, CASE WHEN x.grantor <> x.owner THEN ' BY ' || (SELECT g.name FROM who g WHERE g.oid = x.grantor) END)
    FROM things t, LATERAL (
           SELECT n.nspowner AS owner, a.* FROM ours n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a WHERE t.kind = 1 AND n.oid = t.oid
           UNION ALL
           SELECT c.relowner, a.* FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault((CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END)::"char", c.relowner))) a
            WHERE t.kind BETWEEN 3 AND 5 AND c.oid = t.oid
           UNION ALL
           SELECT p.proowner, a.* FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE t.kind = 6 AND p.oid = t.oid
         ) x JOIN who w ON w.oid = x.grantee
   WHERE x.grantee <> x.owner
   GROUP BY t.place, t.kind, t.oid, w.name, x.grantor, x.owner
  UNION ALL
  SELECT t.place, t.kind, t.oid, 13, d.objsubid, 'COMMENT ' || quote_literal(d.description)
    FROM things t JOIN pg_description d
      ON d.objoid = t.oid AND d.classoid = CASE WHEN t.kind = 1 THEN 'pg_namespace' WHEN t.kind = 6 THEN 'pg_proc' ELSE 'pg_class' END::regclass
  UNION ALL   -- what belongs to the whole database, or the whole server
  SELECT '', 0, r.oid, 0, 0,
         concat('ROLE ', r.rolname, CASE WHEN r.rolsuper THEN ' SUPERUSER' END, CASE WHEN r.rolcanlogin THEN ' LOGIN' END,
                CASE WHEN r.rolcreaterole THEN ' CREATEROLE' END, CASE WHEN r.rolcreatedb THEN ' CREATEDB' END,
                CASE WHEN r.rolbypassrls THEN ' BYPASSRLS' END, CASE WHEN r.rolreplication THEN ' REPLICATION' END,
                CASE WHEN NOT r.rolinherit THEN ' NOINHERIT' END)
    FROM pg_roles r WHERE r.rolname IN ('fence_owner', 'fence_writer', 'fence_gateway', 'fence_protector')
  UNION ALL
  SELECT '', 0, m.member, 1, 0, format('MEMBER OF %I%s', r.rolname, CASE WHEN m.admin_option THEN ' WITH ADMIN OPTION' END)
    FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
   WHERE m.member::regrole::text IN ('fence_owner', 'fence_writer', 'fence_gateway', 'fence_protector')
  UNION ALL
  SELECT '~', 7, e.oid, 0, 0, format('EVENT TRIGGER %I ON %s EXECUTE FUNCTION %s', e.evtname, e.evtevent, e.evtfoid::regproc) FROM pg_event_trigger e
  UNION ALL
  SELECT '~', 7, d.oid, 0, 0, format('DEFAULT ACL %s %s %s %s', w.name, d.defaclobjtype, d.defaclnamespace::regnamespace, d.defaclacl)
    FROM pg_default_acl d JOIN who w ON w.oid = d.defaclrole
  UNION ALL
  SELECT '~', 7, x.oid, 0, 0, format('EXTENSION %I', x.extname) FROM pg_extension x WHERE x.extname <> 'plpgsql'
)
SELECT concat(CASE WHEN l.part > 0 THEN '  ' END, l.line)
  FROM lines l JOIN lines head ON head.place = l.place AND head.kind = l.kind AND head.oid = l.oid AND head.part = 0
 ORDER BY l.place COLLATE "C", l.kind, head.line COLLATE "C", l.part, l.nth, l.line COLLATE "C"
