-- Whole schemas, and tables that can still be written unfenced.
--
--   SELECT fence.protect_schema('shop', under => 'shop/');   -- its tables; with event triggers (events.sql) also those made later
--   SELECT fence.unprotect_schema('shop');
--   SELECT * FROM fence.uncovered;
--
-- pg_upgrade refuses a database in which a table has a column of type regnamespace. So fence.schema_names has the protected
-- schemas by their names. A renamed schema has to be protected again; its tables stay guarded.

-- The protected schemas that exist.
CREATE OR REPLACE VIEW fence.schemas AS
  SELECT to_regnamespace(n.name) AS schema, n.resource, n.under, n.per_row, n.mode, n.stamp
    FROM fence.schema_names n WHERE to_regnamespace(n.name) IS NOT NULL;
REVOKE ALL ON fence.schemas FROM PUBLIC, fence_writer, fence_gateway;
GRANT SELECT ON fence.schemas TO PUBLIC;

-- Returns the tables that a schema's protection covers: its own, without an extension's, and without those that get their guards
-- from a table above them.
CREATE OR REPLACE FUNCTION fence.tables_of(p_schema regnamespace) RETURNS SETOF regclass LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.oid::regclass FROM pg_class c
   WHERE c.relnamespace = p_schema AND c.relkind IN ('r', 'p')
     AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
     AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
   ORDER BY c.relname
$$;
REVOKE ALL ON FUNCTION fence.tables_of(regnamespace) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.tables_of(regnamespace) TO PUBLIC;

-- Stores a schema's protection in fence.schema_names, or deletes it (p_mode is NULL). For the schema's owner.
CREATE OR REPLACE FUNCTION fence.remember_schema(p_schema regnamespace, p_resource text, p_under text, p_per_row text, p_mode text, p_stamp name)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = p_schema AND pg_has_role(session_user, n.nspowner, 'MEMBER')) THEN
    RAISE EXCEPTION 'must be owner of schema %', p_schema USING ERRCODE = 'insufficient_privilege';
  END IF;
  DELETE FROM fence.schema_names s WHERE to_regnamespace(s.name) = p_schema OR to_regnamespace(s.name) IS NULL;
  IF p_mode IS NOT NULL THEN
    INSERT INTO fence.schema_names (name, resource, under, per_row, mode, stamp)
    VALUES (p_schema::text, p_resource, p_under, p_per_row, p_mode, p_stamp);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.remember_schema(regnamespace, text, text, text, text, name) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.remember_schema(regnamespace, text, text, text, text, name) TO fence_protector;

-- Protects every table of a schema alike, see fence.protect. Tables that are protected otherwise by themselves stay so.
-- Protecting again replaces the protection. Without event triggers, fence.uncovered lists later tables until this is called
-- again.
CREATE OR REPLACE FUNCTION fence.protect_schema(schema regnamespace, resource text DEFAULT NULL, under text DEFAULT NULL, per_row text DEFAULT NULL,
                                     mode text DEFAULT 'enforce', stamp name DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was fence.schemas;
  t regclass;
  fault text;
BEGIN
  IF (SELECT n.oid < 16384 AND n.nspname <> 'public' OR n.nspname IN ('fence', 'objects', 'fencegate') FROM pg_namespace n WHERE n.oid = schema) THEN
    RAISE EXCEPTION 'fence.protect_schema: % is not yours to protect', schema USING ERRCODE = 'invalid_parameter_value';
  END IF;
  fault := CASE   -- also if the schema has no table yet
    WHEN num_nonnulls(resource, under, per_row) <> 1 THEN 'give either resource or under or per_row'
    WHEN coalesce(mode, '') NOT IN ('enforce', 'report') THEN 'mode is neither ''enforce'' nor ''report'''
    WHEN under NOT LIKE '%/' THEN 'under does not end in ''/'''
    WHEN per_row IS NOT NULL THEN 'per_row ' || fence.text_fault(per_row)
    WHEN per_row IS NULL THEN 'the name ' || fence.resource_fault(coalesce(resource, under)) END;
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'fence.protect_schema: %', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_protector();
  SELECT * INTO was FROM fence.schemas s WHERE s.schema = protect_schema.schema;
  PERFORM fence.remember_schema(schema, resource, under, per_row, mode, stamp);
  FOR t IN SELECT x FROM fence.tables_of(schema) x LEFT JOIN fence.registry r ON r.relation = x
            WHERE r.relation IS NULL OR (r.resource, r.under, r.per_row, r.mode, r.stamp) IS NOT DISTINCT FROM (was.resource, was.under, was.per_row, was.mode, was.stamp) LOOP
    PERFORM fence.protect(t, resource, under, per_row, mode, stamp);
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.protect_schema(regnamespace, text, text, text, text, name) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.protect_schema(regnamespace, text, text, text, text, name) TO PUBLIC;

-- Removes the protection of a schema, and of the tables that are protected in the same way.
CREATE OR REPLACE FUNCTION fence.unprotect_schema(schema regnamespace) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was fence.schemas;
  t regclass;
BEGIN
  PERFORM fence.need_protector();
  SELECT * INTO was FROM fence.schemas s WHERE s.schema = unprotect_schema.schema;
  PERFORM fence.remember_schema(schema, NULL, NULL, NULL, NULL, NULL);
  FOR t IN SELECT x FROM fence.tables_of(schema) x JOIN fence.registry r ON r.relation = x
            WHERE (r.resource, r.under, r.per_row, r.mode, r.stamp) IS NOT DISTINCT FROM (was.resource, was.under, was.per_row, was.mode, was.stamp) LOOP
    PERFORM fence.unprotect(t);
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.unprotect_schema(regnamespace) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.unprotect_schema(regnamespace) TO PUBLIC;

-- Returns what can still be written without a fence although it, or what it belongs to, is or was protected. It reads the
-- catalogue once. jit is off: the result is small but has many expressions, and PostgreSQL would expect many rows and compile
-- for seconds.
CREATE OR REPLACE FUNCTION fence.find_uncovered() RETURNS TABLE (relation regclass, reason text) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  WITH guarded AS MATERIALIZED (SELECT * FROM fence.protected)
  SELECT p.relation, format('guard %I is disabled or does not cover every kind of write', p.guard)
      || CASE WHEN (p.per_row IS NOT NULL OR p.stamp IS NOT NULL) AND fence.can_stop() THEN ', or another language was added, which can stop a statement: protect it again' ELSE '' END
    FROM guarded p WHERE NOT p.complete
  UNION ALL
  SELECT p.relation, 'is in report mode: what it would refuse is logged, and nothing is refused'
    FROM guarded p WHERE p.complete AND p.mode = 'report'
  UNION ALL
  SELECT r.relation, 'its guard was dropped or changed: protect it again, or unprotect it'
    FROM fence.registry r JOIN pg_class c ON c.oid = r.relation
   WHERE NOT EXISTS (SELECT FROM guarded p WHERE p.relation = r.relation
                        AND (p.resource, p.under, p.per_row, p.mode, p.stamp) IS NOT DISTINCT FROM (r.resource, r.under, r.per_row, r.mode, r.stamp))
  UNION ALL
  SELECT r.relation, format('its guard reads the column %I, which is not there: no row has a resource', c.name)
    FROM fence.registry r, fence.columns_read(r.number, r.stamp) c(name)
   WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = r.relation AND a.attname = c.name AND a.attnum > 0)
     AND EXISTS (SELECT FROM pg_class k WHERE k.oid = r.relation)
  UNION ALL
  SELECT DISTINCT d.relation, 'is a partition or child of a protected table and has no guard'
    || CASE c.relkind WHEN 'f' THEN ', nor can a foreign table have one' ELSE '' END
    FROM guarded p, fence.family(p.relation) d(relation) JOIN pg_class c ON c.oid = d.relation
   WHERE NOT EXISTS (SELECT FROM guarded g WHERE g.relation = d.relation)
  UNION ALL
  SELECT DISTINCT p.relation, format('is written through its parent %s, %s', a.relation,
           CASE WHEN EXISTS (SELECT FROM guarded g WHERE g.relation = a.relation)
                THEN 'whose guard needs another resource' ELSE 'which has no guard' END)
    FROM guarded p, fence.ancestors(p.relation) a(relation)
   WHERE NOT EXISTS (SELECT FROM guarded g WHERE g.relation = a.relation
                        AND (g.resource, g.under, g.per_row) IS NOT DISTINCT FROM (p.resource, p.under, p.per_row))
  UNION ALL
  SELECT t.relation, format('is in the protected schema %s and has no guard', s.schema)
    FROM fence.schemas s, fence.tables_of(s.schema) t(relation)
   WHERE NOT EXISTS (SELECT FROM guarded g WHERE g.relation = t.relation)
  UNION ALL
  SELECT c.oid, format('is a foreign table in the protected schema %s, and can''t be guarded here', s.schema)
    FROM fence.schemas s JOIN pg_class c ON c.relnamespace = s.schema AND c.relkind = 'f'
$$;
REVOKE ALL ON FUNCTION fence.find_uncovered() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.find_uncovered() TO PUBLIC;

CREATE OR REPLACE VIEW fence.uncovered AS SELECT u.relation, u.reason COLLATE "C" AS reason FROM fence.find_uncovered() u;
REVOKE ALL ON fence.uncovered FROM PUBLIC, fence_writer, fence_gateway;
GRANT SELECT ON fence.uncovered TO PUBLIC;
