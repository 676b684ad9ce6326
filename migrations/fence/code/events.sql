-- Event triggers that keep protected what is protected. They are optional, because only a superuser (or what a managed service
-- gives for one) may make them:
--
--   SELECT fence.install_event_triggers();   SELECT fence.uninstall_event_triggers();
--
-- With them, a table that joins a protected one, as a partition or a child, gets its guards at once, and so does one that is
-- made in a protected schema, or moved there. What would weaken a guard is refused: to disable, drop, rename or replace it; to
-- attach a table that needs another grant, or that can't be guarded. The way out is fence.unprotect, for the table's owner.
--
-- They run with the rights of whoever gives the command, as fence.protect does: who makes tables there is fence_writer.

-- Whether a table's guards are as fence.registry says.
CREATE OR REPLACE FUNCTION fence.intact(p_relation regclass) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM fence.protected p JOIN fence.registry r ON r.relation = p.relation
                  WHERE p.relation = p_relation AND p.complete AND p.guard = 'fence_guard'
                    AND (p.resource, p.under, p.per_row, p.mode, p.stamp) IS NOT DISTINCT FROM (r.resource, r.under, r.per_row, r.mode, r.stamp))
$$;
REVOKE ALL ON FUNCTION fence.intact(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.intact(regclass) TO PUBLIC;

-- Refuses where a table's guards are not what they were.
CREATE OR REPLACE FUNCTION fence.need_intact(p_relation regclass) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM fence.registry r WHERE r.relation = p_relation) AND NOT fence.intact(p_relation) THEN
    RAISE EXCEPTION 'the guards of % are disabled, dropped or changed by this command', p_relation USING ERRCODE = 'object_not_in_prerequisite_state',
      HINT = format('To end the protection: SELECT fence.unprotect(%L);', p_relation);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.need_intact(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.need_intact(regclass) TO PUBLIC;

-- Gives a table the guards of the protected table above it, or else those of its schema.
CREATE OR REPLACE FUNCTION fence.cover(p_relation regclass) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  has record;
  g fence.registry;
  s fence.schemas;
  parent regclass;
BEGIN
  SELECT p.resource, p.under, p.per_row, p.mode, p.stamp INTO has FROM fence.protected p WHERE p.relation = p_relation AND p.complete LIMIT 1;
  FOR parent IN SELECT i.inhparent::regclass FROM pg_inherits i WHERE i.inhrelid = p_relation ORDER BY i.inhseqno LOOP
    SELECT * INTO g FROM fence.registry r WHERE r.relation = parent;
    IF has IS NULL AND FOUND THEN
      PERFORM fence.need_writer();
      g.relation := p_relation;
      PERFORM fence.put_guards(g);
      SELECT g.resource, g.under, g.per_row, g.mode, g.stamp INTO has;
    ELSIF NOT (has IS NULL)
          AND (g.resource, g.under, g.per_row, g.mode, g.stamp) IS DISTINCT FROM (has.resource, has.under, has.per_row, has.mode, has.stamp) THEN
      RAISE EXCEPTION '% is protected otherwise than its parent %, through which it can be written too', p_relation, parent
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Protect both alike, or unprotect one of them, first.';
    END IF;
  END LOOP;
  SELECT * INTO s FROM fence.schemas x WHERE x.schema = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = p_relation);
  IF FOUND AND has IS NULL AND EXISTS (SELECT FROM fence.tables_of(s.schema) t WHERE t = p_relation) THEN
    PERFORM fence.protect(p_relation, s.resource, s.under, s.per_row, s.mode, s.stamp);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.cover(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.cover(regclass) TO PUBLIC;

-- After a command that makes or alters.
CREATE OR REPLACE FUNCTION fence.keep() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c record;
  member regclass;
BEGIN
  FOR c IN SELECT d.classid, d.objid,
                  coalesce((SELECT t.tgrelid FROM pg_trigger t WHERE d.classid = 'pg_trigger'::regclass AND t.oid = d.objid),
                           (SELECT r.ev_class FROM pg_rewrite r WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid))::regclass AS guarded
             FROM pg_event_trigger_ddl_commands() d WHERE d.object_type IN ('table', 'foreign table', 'trigger', 'view', 'rule') LOOP
    IF c.guarded IS NOT NULL THEN
      PERFORM fence.need_intact(c.guarded);
    ELSIF c.classid = 'pg_class'::regclass THEN
      FOR member IN SELECT fence.family(c.objid::regclass) LOOP
        PERFORM fence.need_intact(member), fence.cover(member);
      END LOOP;
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.keep() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.keep() TO PUBLIC;

-- After a command that drops.
CREATE OR REPLACE FUNCTION fence.keep_dropped() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  guarded regclass;
BEGIN
  FOR guarded IN SELECT to_regclass(format('%I.%I', d.address_names[1], d.address_names[2])) FROM pg_event_trigger_dropped_objects() d
                  WHERE d.object_type = 'trigger' LOOP
    PERFORM fence.need_intact(guarded);
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.keep_dropped() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.keep_dropped() TO PUBLIC;

-- Makes the event triggers, where they are not there yet. ALWAYS: in replica mode, too.
CREATE OR REPLACE FUNCTION fence.install_event_triggers() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.uninstall_event_triggers();
  CREATE EVENT TRIGGER fence_keep ON ddl_command_end EXECUTE FUNCTION fence.keep();
  CREATE EVENT TRIGGER fence_keep_dropped ON sql_drop EXECUTE FUNCTION fence.keep_dropped();
  ALTER EVENT TRIGGER fence_keep ENABLE ALWAYS;
  ALTER EVENT TRIGGER fence_keep_dropped ENABLE ALWAYS;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE EXCEPTION 'fence.install_event_triggers: %', sqlerrm USING ERRCODE = 'insufficient_privilege',
    HINT = 'Without event triggers, look into fence.uncovered after tables were made or altered.';
END $$;
REVOKE ALL ON FUNCTION fence.install_event_triggers() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.install_event_triggers() TO PUBLIC;

-- Removes the event triggers. What is protected stays so until somebody changes it.
CREATE OR REPLACE FUNCTION fence.uninstall_event_triggers() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtname IN ('fence_keep', 'fence_keep_dropped')) THEN
    DROP EVENT TRIGGER IF EXISTS fence_keep;
    DROP EVENT TRIGGER IF EXISTS fence_keep_dropped;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.uninstall_event_triggers() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.uninstall_event_triggers() TO PUBLIC;
