-- Event triggers that keep protected tables protected. They are optional, because only a superuser (or a managed service's
-- substitute for one) may create them:
--
--   SELECT fence.install_event_triggers();   SELECT fence.uninstall_event_triggers();
--
-- With them, a table that joins a protected one, as a partition or a child, gets its guards at once, and so does a table that is
-- created in a protected schema, or moved there. A command that would weaken a guard is refused: to disable, drop, rename or
-- replace it; to attach a table that needs another grant, or that can't be guarded; to give another column the name of a column
-- that a guard reads. The table's owner removes guards with fence.unprotect.
--
-- Their functions run with the rights of the role that gives the command, a superuser too. So fence_owner must not own them, for
-- it could replace them: installing creates them in a schema of the installer's, fence_events.
--
--   keep, keep_dropped    the event triggers' functions. With need_kept, cover and put_guards (the text of fence.put_guards) they
--                         run with the rights of the role that gives the command, call nothing of the schema fence, and build
--                         commands from single values by %I and %L
--   is_kept, needs_guards, make_guards, remember
--                         ask the schema fence, SECURITY DEFINER, as the role fence_events. If a function of fence_owner's is
--                         replaced, even by one without SECURITY DEFINER, it gets the rights of that role: those of
--                         fence_protector only. No role is a member of it.
--
-- Installed functions stay as they are when the code changes. So the functions that they call keep their signatures: fence.kept,
-- fence.wants_guards, fence.make_guards, fence.remember.

-- Returns whether a table's guards are as fence.registry says, and the columns that they read exist.
CREATE OR REPLACE FUNCTION fence.intact(p_relation regclass) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM fence.protected p JOIN fence.registry r ON r.relation = p.relation
                  WHERE p.relation = p_relation AND p.complete AND p.guard = 'fence_guard'
                    AND (p.resource, p.under, p.per_row, p.mode, p.stamp) IS NOT DISTINCT FROM (r.resource, r.under, r.per_row, r.mode, r.stamp)
                    AND NOT EXISTS (SELECT FROM fence.columns_read(r.number, r.stamp) c(name)
                                     WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_relation AND a.attname = c.name AND a.attnum > 0)))
$$;
REVOKE ALL ON FUNCTION fence.intact(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.intact(regclass) TO PUBLIC;

-- Returns whether a command left a protected table's guards intact; true for a table without protection. p_column: the column
-- that the command renamed, else 0. A column renamed to a name that a guard reads would make the guard read another column.
CREATE OR REPLACE FUNCTION fence.kept(p_relation regclass, p_column integer) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT NOT EXISTS (
    SELECT FROM fence.registry r
     WHERE r.relation = p_relation
       AND (NOT fence.intact(p_relation)
            OR p_column > 0 AND (SELECT a.attname FROM pg_attribute a WHERE a.attrelid = p_relation AND a.attnum = p_column) IN (SELECT fence.columns_read(r.number, r.stamp))))
$$;
REVOKE ALL ON FUNCTION fence.kept(regclass, integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.kept(regclass, integer) TO PUBLIC;

-- Returns the guards that a table lacks: those of a protected table above it, or else those of its schema. mode is NULL if it
-- lacks none. Writes can come through each table above it, so all of these are protected alike.
CREATE OR REPLACE FUNCTION fence.wanted(p_relation regclass) RETURNS fence.registry LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  g fence.registry;
  has boolean;
  parent regclass;
BEGIN
  SELECT p.relation, p.resource, p.under, p.per_row, p.mode, p.stamp INTO g FROM fence.protected p WHERE p.relation = p_relation AND p.complete LIMIT 1;
  has := FOUND;
  IF NOT has THEN
    SELECT r.* INTO g FROM pg_inherits i JOIN fence.registry r ON r.relation = i.inhparent WHERE i.inhrelid = p_relation ORDER BY i.inhseqno LIMIT 1;
    IF NOT FOUND THEN
      SELECT p_relation, s.resource, s.under, s.per_row, s.mode, s.stamp INTO g
        FROM pg_class c JOIN fence.schemas s ON s.schema = c.relnamespace
       WHERE c.oid = p_relation AND p_relation IN (SELECT fence.tables_of(s.schema));
    END IF;
  END IF;
  IF g.mode IS NULL THEN
    RETURN NULL;
  END IF;
  SELECT i.inhparent INTO parent FROM pg_inherits i LEFT JOIN fence.registry r ON r.relation = i.inhparent
   WHERE i.inhrelid = p_relation AND (r.resource, r.under, r.per_row, r.mode, r.stamp) IS DISTINCT FROM (g.resource, g.under, g.per_row, g.mode, g.stamp)
   ORDER BY i.inhseqno LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION '% is protected otherwise than its parent %, through which it can be written too', p_relation, parent
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Protect both alike, or unprotect one of them, first.';
  END IF;
  IF has THEN
    RETURN NULL;
  END IF;
  RETURN g;
END $$;
REVOKE ALL ON FUNCTION fence.wanted(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.wanted(regclass) TO PUBLIC;

CREATE OR REPLACE FUNCTION fence.wants_guards(p_relation regclass) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT (fence.wanted(p_relation)).mode IS NOT NULL
$$;
REVOKE ALL ON FUNCTION fence.wants_guards(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.wants_guards(regclass) TO PUBLIC;

-- Creates what the guards that a table lacks will call. Returns the arguments of fence.put_guards: resource, under, per_row,
-- mode, stamp, number. A partition or child calls the functions of its parent's guards.
CREATE OR REPLACE FUNCTION fence.make_guards(p_relation regclass) RETURNS text[] LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  g fence.registry := fence.wanted(p_relation);
  fault text := fence.protect_fault(p_relation, g.resource, g.under, g.per_row, g.mode, g.stamp);
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'fence.protect: %', fault USING ERRCODE = CASE WHEN fault LIKE '% foreign table%' THEN 'wrong_object_type' ELSE 'invalid_parameter_value' END;
  END IF;
  IF g.number IS NULL THEN
    g.number := fence.make_number(p_relation, g.per_row, g.mode, g.stamp);
  END IF;
  RETURN ARRAY[g.resource, g.under, g.per_row, g.mode, g.stamp, g.number::text];
END $$;
REVOKE ALL ON FUNCTION fence.make_guards(regclass) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.make_guards(regclass) TO fence_protector;

-- The functions that installing creates. caller: the role that may call it. asks: it runs as the role fence_events.
CREATE OR REPLACE FUNCTION fence.event_code() RETURNS TABLE (name text, arguments text, result text, caller text, asks boolean, body text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $code$
  VALUES
  ('is_kept', 'p_relation oid, p_column integer', 'boolean', 'PUBLIC', true, 'BEGIN RETURN fence.kept(p_relation, p_column); END'),
  ('needs_guards', 'p_relation oid', 'boolean', 'PUBLIC', true, 'BEGIN RETURN fence.wants_guards(p_relation); END'),
  ('make_guards', 'p_relation oid', 'text[]', 'fence_protector', true, 'BEGIN RETURN fence.make_guards(p_relation); END'),
  ('remember', 'p_relation oid', 'void', 'fence_protector', true, 'BEGIN PERFORM fence.remember(p_relation); END'),
  ('put_guards', 'p_relation regclass, p_resource text, p_under text, p_per_row text, p_mode text, p_stamp name, p_number integer', 'void', 'PUBLIC', false,
    (SELECT p.prosrc FROM pg_proc p WHERE p.oid = 'fence.put_guards(regclass, text, text, text, text, name, integer)'::regprocedure)),

  -- Refuses a command after which a table's guards are not intact.
  ('need_kept', 'p_relation regclass, p_column integer', 'void', 'PUBLIC', false, $$
BEGIN
  IF NOT fence_events.is_kept(p_relation, p_column) THEN
    RAISE EXCEPTION 'the guards of % are disabled, dropped or changed by this command, or a column that they read', p_relation
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('To end the protection: SELECT fence.unprotect(%L);', p_relation);
  END IF;
END $$),

  -- Gives a table the guards of the protected table above it, or else those of its schema.
  ('cover', 'p_relation regclass', 'void', 'PUBLIC', false, $$
DECLARE
  g text[];
BEGIN
  IF fence_events.needs_guards(p_relation) THEN
    IF NOT has_function_privilege('fence.guard()', 'EXECUTE') THEN
      RAISE EXCEPTION '% gets guards, which % may not put there', p_relation, current_user USING ERRCODE = 'insufficient_privilege',
        HINT = format('The owner of a protected table is fence_protector: GRANT fence_protector TO %I;', current_user);
    END IF;
    g := fence_events.make_guards(p_relation);
    PERFORM fence_events.put_guards(p_relation, g[1], g[2], g[3], g[4], g[5]::name, g[6]::integer);
    PERFORM fence_events.remember(p_relation);
  END IF;
END $$),

  -- After a command that creates or alters. If the schema fence was dropped, there is nothing to keep.
  ('keep', '', 'event_trigger', 'PUBLIC', false, $$
DECLARE
  c record;
  member regclass;
BEGIN
  IF to_regprocedure('fence.kept(regclass, integer)') IS NULL THEN
    RETURN;
  END IF;
  FOR c IN SELECT d.classid, d.objid, CASE WHEN d.object_type = 'table column' AND d.command_tag LIKE 'ALTER %' THEN d.objsubid ELSE 0 END AS renamed,
                  coalesce((SELECT t.tgrelid FROM pg_trigger t WHERE d.classid = 'pg_trigger'::regclass AND t.oid = d.objid),
                           (SELECT r.ev_class FROM pg_rewrite r WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid))::regclass AS guarded
             FROM pg_event_trigger_ddl_commands() d
            WHERE d.object_type IN ('table', 'table column', 'foreign table', 'trigger', 'view', 'rule')
            UNION ALL   -- a type's attribute was changed, and so were the columns of its tables
           SELECT 'pg_class'::regclass, k.oid, 0, NULL FROM pg_event_trigger_ddl_commands() d JOIN pg_type y ON y.typrelid = d.objid OR y.oid = d.objid
             JOIN pg_class k ON k.reloftype = y.oid WHERE d.command_tag = 'ALTER TYPE' LOOP
    IF c.guarded IS NOT NULL THEN
      PERFORM fence_events.need_kept(c.guarded, 0);
    ELSIF c.classid = 'pg_class'::regclass THEN
      PERFORM fence_events.need_kept(c.objid, c.renamed);
      FOR member IN
        WITH RECURSIVE family(relid) AS (
          SELECT c.objid UNION SELECT i.inhrelid FROM pg_inherits i JOIN family ON i.inhparent = family.relid
        )
        SELECT relid FROM family LOOP
        PERFORM fence_events.need_kept(member, 0), fence_events.cover(member);
      END LOOP;
    END IF;
  END LOOP;
END $$),

  -- After a command that drops.
  ('keep_dropped', '', 'event_trigger', 'PUBLIC', false, $$
DECLARE
  guarded regclass;
BEGIN
  IF to_regprocedure('fence.kept(regclass, integer)') IS NULL THEN
    RETURN;
  END IF;
  FOR guarded IN SELECT to_regclass(format('%I.%I', d.address_names[1], d.address_names[2])) FROM pg_event_trigger_dropped_objects() d
                  WHERE d.object_type = 'trigger' LOOP
    PERFORM fence_events.need_kept(guarded, 0);
  END LOOP;
END $$)
$code$;
REVOKE ALL ON FUNCTION fence.event_code() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.event_code() TO PUBLIC;

-- A hash of the functions that installing would create. The comment on the schema fence_events has the hash of those that it
-- created.
CREATE OR REPLACE FUNCTION fence.event_hash() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT left(encode(sha256(convert_to(string_agg(c::text, '' ORDER BY c.name), 'UTF8')), 'hex'), 12) FROM fence.event_code() c
$$;
REVOKE ALL ON FUNCTION fence.event_hash() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.event_hash() TO PUBLIC;

-- Creates the role fence_events if it is missing, and grants it fence_protector. Raises 55000 if the role has other rights or a
-- member.
CREATE OR REPLACE FUNCTION fence.make_asker() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'fence_events') THEN
    BEGIN
      CREATE ROLE fence_events NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;   -- another database of the cluster created it first
    END;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_auth_members m WHERE m.member = 'fence_events'::regrole AND m.roleid = 'fence_protector'::regrole) THEN
    BEGIN
      GRANT fence_protector TO fence_events;
    EXCEPTION WHEN unique_violation OR internal_error THEN
      NULL;
    END;
  END IF;
  IF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'fence_events'
                AND (r.rolsuper OR r.rolcanlogin OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls))
     OR EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = 'fence_events'::regrole AND m.member <> current_user::regrole
                    OR m.member = 'fence_events'::regrole AND m.roleid <> 'fence_protector'::regrole) THEN
    RAISE EXCEPTION 'the role fence_events may do more than it should, or somebody is in it' USING ERRCODE = 'object_not_in_prerequisite_state',
      HINT = 'It has no attribute, no member, and is in fence_protector alone. REVOKE the rest.';
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.make_asker() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.make_asker() TO PUBLIC;

-- Creates the event triggers and their functions. ALWAYS: in replica mode, too.
CREATE OR REPLACE FUNCTION fence.make_event_triggers() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  address text;
BEGIN
  PERFORM fence.make_asker();
  CREATE SCHEMA fence_events;
  REVOKE ALL ON SCHEMA fence_events FROM PUBLIC;
  GRANT USAGE ON SCHEMA fence_events TO PUBLIC;
  FOR f IN SELECT * FROM fence.event_code() LOOP
    address := format('fence_events.%I(%s)', f.name, f.arguments);
    EXECUTE format('CREATE FUNCTION %s RETURNS %s LANGUAGE plpgsql VOLATILE %s SET search_path = pg_catalog, pg_temp AS %L',
                   address, f.result, CASE WHEN f.asks THEN 'SECURITY DEFINER' END, f.body);
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', address);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', address, f.caller);
    IF f.asks THEN
      EXECUTE format('ALTER FUNCTION %s OWNER TO fence_events', address);
    END IF;
  END LOOP;
  EXECUTE format('COMMENT ON SCHEMA fence_events IS %L', 'fencegate event triggers ' || fence.event_hash());
  CREATE EVENT TRIGGER fence_keep ON ddl_command_end EXECUTE FUNCTION fence_events.keep();
  CREATE EVENT TRIGGER fence_keep_dropped ON sql_drop EXECUTE FUNCTION fence_events.keep_dropped();
  ALTER EVENT TRIGGER fence_keep ENABLE ALWAYS;
  ALTER EVENT TRIGGER fence_keep_dropped ENABLE ALWAYS;
END $$;
REVOKE ALL ON FUNCTION fence.make_event_triggers() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.make_event_triggers() TO PUBLIC;

-- Installs the event triggers. For a superuser, who runs this code now and its copy later. A repeated call succeeds, and recreates
-- them.
CREATE OR REPLACE FUNCTION fence.install_event_triggers() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.uninstall_event_triggers();
  FOR try IN 1 .. 3 LOOP
    BEGIN
      PERFORM fence.make_event_triggers();
      RETURN;
    EXCEPTION WHEN undefined_object THEN   -- another database of the cluster has just dropped the role
      IF try = 3 THEN
        RAISE;
      END IF;
    END;
  END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE EXCEPTION 'fence.install_event_triggers: %', sqlerrm USING ERRCODE = 'insufficient_privilege',
    HINT = 'Without event triggers, look into fence.uncovered after tables were made or altered.';
END $$;
REVOKE ALL ON FUNCTION fence.install_event_triggers() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.install_event_triggers() TO PUBLIC;

-- Removes the event triggers. Protected tables stay protected until a role changes them.
CREATE OR REPLACE FUNCTION fence.uninstall_event_triggers() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtname IN ('fence_keep', 'fence_keep_dropped')) THEN
    DROP EVENT TRIGGER IF EXISTS fence_keep;
    DROP EVENT TRIGGER IF EXISTS fence_keep_dropped;
  END IF;
  IF obj_description(to_regnamespace('fence_events'), 'pg_namespace') LIKE 'fencegate event triggers %' THEN
    DROP SCHEMA fence_events CASCADE;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.uninstall_event_triggers() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.uninstall_event_triggers() TO PUBLIC;
