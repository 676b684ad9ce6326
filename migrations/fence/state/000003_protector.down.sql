DROP TABLE fence.leaving;
DROP FUNCTION IF EXISTS fence.has_left();
DO $$
DECLARE
  f text;
BEGIN
  FOR f IN SELECT p.oid::pg_catalog.regprocedure FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'fence'::pg_catalog.regnamespace AND pg_catalog.has_function_privilege('fence_protector', p.oid, 'EXECUTE') LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM fence_protector', f);
  END LOOP;

  -- They stay where another database depends on them or a login is a member; see the baseline.
  FOREACH f IN ARRAY ARRAY['fence_events', 'fence_protector'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles r ON r.oid = m.roleid
                    WHERE r.rolname = f AND m.member <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)) THEN
      BEGIN
        EXECUTE pg_catalog.format('DROP ROLE IF EXISTS %I', f);
      EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege OR internal_error THEN
        NULL;
      END;
    END IF;
  END LOOP;
END $$;
COMMENT ON SCHEMA fence IS 'fencegate fence state 2';
