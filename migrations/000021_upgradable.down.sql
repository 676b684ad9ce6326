SET ROLE fence_owner;

CREATE TABLE fence.schemas_again (
  schema   regnamespace CONSTRAINT schemas_pkey PRIMARY KEY,
  resource text,
  under    text,
  per_row  text,
  mode     text NOT NULL,
  stamp    name
);
INSERT INTO fence.schemas_again SELECT * FROM fence.schemas;

-- The event triggers, where they are installed, look into fence.schemas after each command that makes or alters something.
DO $$
DECLARE
  uncovered text := pg_catalog.pg_get_viewdef('fence.uncovered'::pg_catalog.regclass);
BEGIN
  DROP VIEW fence.uncovered;
  DROP FUNCTION fence.remember_schema(fence.schemas);
  DROP VIEW fence.schemas;
  ALTER TABLE fence.schemas_again RENAME TO schemas;
  DROP TABLE fence.schema_names;
  EXECUTE 'CREATE VIEW fence.uncovered AS ' || uncovered;
END $$;
GRANT SELECT ON fence.schemas, fence.uncovered TO PUBLIC;

CREATE FUNCTION fence.remember_schema(p_schema fence.schemas) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = p_schema.schema AND pg_has_role(session_user, n.nspowner, 'MEMBER')) THEN
    RAISE EXCEPTION 'must be owner of schema %', p_schema.schema USING ERRCODE = 'insufficient_privilege';
  END IF;
  DELETE FROM fence.schemas s WHERE s.schema = p_schema.schema OR NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = s.schema);
  IF p_schema.mode IS NOT NULL THEN
    INSERT INTO fence.schemas SELECT p_schema.*;
  END IF;
END $$;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 20';
