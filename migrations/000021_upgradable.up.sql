-- pg_upgrade refuses a database in which a table has a column of type regnamespace. So the protected schemas are kept by their
-- names, and fence.schemas is a view that looks as the table did. A schema that is renamed has to be protected again; its tables
-- stay guarded.
SET ROLE fence_owner;

CREATE TABLE fence.schema_names (
  name     text PRIMARY KEY,   -- as to_regnamespace reads it, quoted where it must be
  resource text,
  under    text,
  per_row  text,
  mode     text NOT NULL,
  stamp    name
);
INSERT INTO fence.schema_names SELECT schema::text, resource, under, per_row, mode, stamp FROM fence.schemas
 WHERE schema IN (SELECT oid FROM pg_catalog.pg_namespace);

-- What depends on the table's type is made again, as it was. The event triggers, where they are installed, look into
-- fence.schemas after each command that makes or alters something, so it is there then.
DO $$
DECLARE
  uncovered text := pg_catalog.pg_get_viewdef('fence.uncovered'::pg_catalog.regclass);
BEGIN
  DROP VIEW fence.uncovered;
  DROP FUNCTION fence.remember_schema(fence.schemas);
  DROP TABLE fence.schemas;
  CREATE VIEW fence.schemas AS
    SELECT pg_catalog.to_regnamespace(n.name) AS schema, n.resource, n.under, n.per_row, n.mode, n.stamp
      FROM fence.schema_names n WHERE pg_catalog.to_regnamespace(n.name) IS NOT NULL;
  EXECUTE 'CREATE VIEW fence.uncovered AS ' || uncovered;
END $$;
REVOKE ALL ON fence.schema_names FROM PUBLIC;
GRANT SELECT ON fence.schemas, fence.uncovered TO PUBLIC;

-- Puts a schema's protection into fence.schemas, or takes it out (p_schema.mode is NULL), for its owner.
CREATE FUNCTION fence.remember_schema(p_schema fence.schemas) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = p_schema.schema AND pg_has_role(session_user, n.nspowner, 'MEMBER')) THEN
    RAISE EXCEPTION 'must be owner of schema %', p_schema.schema USING ERRCODE = 'insufficient_privilege';
  END IF;
  DELETE FROM fence.schema_names s WHERE to_regnamespace(s.name) = p_schema.schema OR to_regnamespace(s.name) IS NULL;
  IF p_schema.mode IS NOT NULL THEN
    INSERT INTO fence.schema_names (name, resource, under, per_row, mode, stamp)
    VALUES (p_schema.schema::text, p_schema.resource, p_schema.under, p_schema.per_row, p_schema.mode, p_schema.stamp);
  END IF;
END $$;

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate schema version 21';
