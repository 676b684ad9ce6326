SET LOCAL search_path = pg_catalog, pg_temp;
-- The right to protect is a role of its own, apart from the right to write.
--
-- fence_protector   may put guards on tables that it owns, and take them off; grant it to the owners of tables
--
-- It is nobody's by default. The login that migrates gets it where it needs a grant to act as fence_owner.
DO $$
DECLARE
  f text;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'fence_protector') THEN
    BEGIN
      CREATE ROLE fence_protector NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;   -- another database of the cluster was faster
    END;
  END IF;
  IF NOT pg_catalog.pg_has_role(current_user, 'fence_protector',
       CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END) THEN
    EXECUTE pg_catalog.format('GRANT fence_protector TO %I', current_user);
  END IF;

  -- The functions of protected tables: a partition that is made later calls those of its parent.
  SET LOCAL ROLE fence_owner;
  FOR f IN SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'fence'::regnamespace AND p.proname ~ '^(rows|stamp)_[0-9]+$' LOOP
    EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO fence_protector', f);
  END LOOP;
END $$;

-- Tables whose protection ends with this transaction. A row is there within a transaction only: at its end fence.has_left
-- looks that no guard stays behind, and deletes it.
CREATE TABLE fence.leaving (
  relation oid PRIMARY KEY
);

-- Replaced by the code, which may come later than this step.
CREATE OR REPLACE FUNCTION fence.has_left() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fence.leaving l WHERE l.relation = new.relation;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.has_left() FROM PUBLIC;
CREATE CONSTRAINT TRIGGER has_left AFTER INSERT ON fence.leaving DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fence.has_left();
ALTER TABLE fence.leaving ENABLE ALWAYS TRIGGER has_left;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate fence state 3';
