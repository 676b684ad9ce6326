-- Removes the schema, with the triggers that guard tables (they depend on it), and every fence: afterwards nothing
-- refuses a stale write. The runner refuses this where fences exist, unless it is forced.
DROP SCHEMA fence CASCADE;

-- Roles belong to the whole cluster: one stays where another database depends on it or a login is a member, and losing
-- the race to another database's migration is success (internal_error is "tuple concurrently deleted"). fence_events is made
-- with the event triggers.
DO $$
DECLARE
  unwanted text;
BEGIN
  FOREACH unwanted IN ARRAY ARRAY['fence_locker', 'fence_events', 'fence_protector', 'fence_gateway', 'fence_writer', 'fence_owner'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles r ON r.oid = m.roleid
                    WHERE r.rolname = unwanted AND m.member <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)) THEN
      BEGIN
        EXECUTE pg_catalog.format('DROP ROLE IF EXISTS %I', unwanted);
      EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege OR internal_error THEN
        NULL;
      END;
    END IF;
  END LOOP;
END $$;
