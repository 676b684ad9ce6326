-- Taking all guards off a table, or none.

-- Returns the guards on a table: every trigger that calls a guard's function.
CREATE OR REPLACE FUNCTION fence.guards_of(p_relation regclass) RETURNS SETOF name LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT t.tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
   WHERE t.tgrelid = p_relation AND p.pronamespace = 'fence'::regnamespace AND p.proname ~ '^(guard|guard_rows|report|mark_move|(rows|stamp|moved)_[0-9]+)$'
$$;
REVOKE ALL ON FUNCTION fence.guards_of(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.guards_of(regclass) TO PUBLIC;

-- Removes a table from the registry, for its owner, before its guards are removed: the event triggers read the registry. At the
-- end of the transaction all guards must be gone (fence.has_left), so a caller can't remove only a part of them.
CREATE OR REPLACE FUNCTION fence.leave(p_relation regclass) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_class c WHERE c.oid = p_relation AND pg_has_role(session_user, c.relowner, 'MEMBER')) THEN
    DELETE FROM fence.registry r WHERE r.relation = p_relation;
    IF FOUND THEN
      SET CONSTRAINTS fence.has_left DEFERRED;   -- the session may have set ALL otherwise
      INSERT INTO fence.leaving (relation) VALUES (p_relation) ON CONFLICT DO NOTHING;
    END IF;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.leave(regclass) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.leave(regclass) TO fence_protector;

-- Checks, at the end of a transaction in which a table left the registry, that the table is back or none of its guards is there.
CREATE OR REPLACE FUNCTION fence.has_left() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fence.leaving l WHERE l.relation = new.relation;
  IF NOT EXISTS (SELECT FROM fence.registry r WHERE r.relation = new.relation) AND EXISTS (SELECT FROM fence.guards_of(new.relation)) THEN
    RAISE EXCEPTION 'some guards of % are still there', new.relation::regclass USING ERRCODE = 'object_not_in_prerequisite_state',
      HINT = format('To end the protection: SELECT fence.unprotect(%L);', new.relation::regclass);
  END IF;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.has_left() FROM PUBLIC, fence_writer, fence_gateway;

-- Removes the guards. Waits for all who use the table. Takes the lock of DROP TRIGGER before it changes the registry, as
-- fence.protect does. Runs with the caller's rights: PostgreSQL lets only the table's owner do it.
CREATE OR REPLACE FUNCTION fence.unprotect(relation regclass) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  member regclass;
  guard name;
BEGIN
  PERFORM fence.need_protector();
  IF (SELECT c.relkind <> 'v' FROM pg_class c WHERE c.oid = relation) AND EXISTS (SELECT FROM fence.family(relation) m, fence.guards_of(m)) THEN
    BEGIN
      EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', relation);
    EXCEPTION WHEN SQLSTATE 'ZF000' THEN NULL;   -- never, as in fence.protect
    END;
  END IF;
  PERFORM fence.leave(m) FROM fence.family(relation) m;
  FOR member, guard IN SELECT m, g FROM fence.family(relation) m, fence.guards_of(m) g LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', guard, member);
  END LOOP;
  PERFORM fence.tidy();
END $$;
REVOKE ALL ON FUNCTION fence.unprotect(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.unprotect(regclass) TO PUBLIC;
