-- Forgets who holds what: a lease that runs may be given to another at once. Its writes are refused from then on, by the fence.
DROP TABLE fence.lease_source;
DROP TABLE fence.lease_waiters;
DROP TABLE fence.leases;
DO $$
DECLARE
  f text;
BEGIN
  FOR f IN SELECT p.oid::pg_catalog.regprocedure FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'fence'::pg_catalog.regnamespace AND pg_catalog.has_function_privilege('fence_locker', p.oid, 'EXECUTE') LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM fence_locker', f);
  END LOOP;

  -- It stays where another database depends on it or a login is a member; see the baseline.
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles r ON r.oid = m.roleid
                  WHERE r.rolname = 'fence_locker' AND m.member <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)) THEN
    BEGIN
      DROP ROLE IF EXISTS fence_locker;
    EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege OR internal_error THEN
      NULL;
    END;
  END IF;
END $$;
COMMENT ON SCHEMA fence IS 'fencegate fence state 5';
