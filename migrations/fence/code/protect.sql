-- Protecting tables by a fence, and listing protected ones; with a resource per row, in report mode, and with a stamp; and
-- views.
--
--   SELECT fence.protect('orders', resource => 'orders');      -- writes need the grant of this resource
--   SELECT fence.protect('orders', under => 'orders/');        -- writes need the grant of some resource below the prefix
--   SELECT fence.protect('orders', per_row => $$'orders/' || id$$);   -- each row needs the grant of its own resource
--   SELECT fence.protect('orders', under => 'orders/', mode => 'report');   SELECT fence.enforce('orders');
--   SELECT fence.protect('orders', under => 'orders/', stamp => 'token');   -- bigint: the token that wrote the row
--   SELECT fence.unprotect('orders');
--   SELECT * FROM fence.protected;   SELECT * FROM fence.uncovered;
--
-- Facts behind it, each tested: a trigger of the root does not fire for DML on a leaf partition, so every partition and
-- inheritance child gets its own. session_replication_role = replica skips ORIGIN triggers, so they are ENABLE ALWAYS. Row-level
-- security would turn a stale UPDATE into a silent no-op.
--
-- On a subscriber: rows that logical replication applies fire no statement trigger. Its TRUNCATE and its initial copy do, and
-- the guard lets the worker pass (see fence.replicates): the publisher's fence has judged that write.

-- Returns the table with all its partitions and inheritance children.
CREATE OR REPLACE FUNCTION fence.family(p_relation regclass) RETURNS SETOF regclass LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE family(relid) AS (
    SELECT p_relation::oid
    UNION
    SELECT i.inhrelid FROM pg_inherits i JOIN family ON i.inhparent = family.relid
  )
  SELECT relid::regclass FROM family
$$;
REVOKE ALL ON FUNCTION fence.family(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.family(regclass) TO PUBLIC;

-- Returns every table above it, through which its rows can be written too.
CREATE OR REPLACE FUNCTION fence.ancestors(p_relation regclass) RETURNS SETOF regclass LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE above(relid) AS (
    SELECT i.inhparent FROM pg_inherits i WHERE i.inhrelid = p_relation
    UNION
    SELECT i.inhparent FROM pg_inherits i JOIN above ON i.inhrelid = above.relid
  )
  SELECT relid::regclass FROM above
$$;
REVOKE ALL ON FUNCTION fence.ancestors(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.ancestors(regclass) TO PUBLIC;

-- The AFTER STATEMENT triggers that look at rows: how many of a table's are as fence.protect made them. tgtype: 4 AFTER INSERT,
-- 16 AFTER UPDATE, 8 AFTER DELETE. A stamp without a resource per row needs no look at old rows.
CREATE OR REPLACE VIEW fence.row_guards AS
  SELECT t.tgrelid::regclass AS relation, substr(p.proname, 6)::integer AS number, a[1] AS mode, nullif(a[2], '') AS needed, nullif(a[3], '') AS stamp,
         count(*) FILTER (WHERE t.tgenabled = 'A' AND t.tgqual IS NULL AND t.tgattr::text = '' AND (a[2] <> '' OR (t.tgtype = 4 OR t.tgoldtable = 'old_rows'))
                            AND (t.tgtype = 8 OR t.tgnewtable = 'new_rows') AND t.tgtype IN (4, 8, 16)) AS complete
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid, LATERAL fence.arguments(t.tgargs) a
   WHERE p.pronamespace = 'fence'::regnamespace AND p.proname ~ '^rows_[0-9]+$'
   GROUP BY 1, 2, 3, 4, 5;
REVOKE ALL ON fence.row_guards FROM PUBLIC, fence_writer, fence_gateway;
GRANT SELECT ON fence.row_guards TO PUBLIC;

-- Each guard: what its table's writes need, whether it is complete, what it would have refused in report mode, and how many
-- writes it has refused since it was created, on any path; NULL: not counted. tgtype 62: BEFORE STATEMENT, INSERT, UPDATE,
-- DELETE, TRUNCATE. A view has no TRUNCATE, and its triggers can't be ALWAYS (nor can the INSTEAD OF triggers that do the
-- writing). 23: BEFORE ROW, INSERT, UPDATE; the leaves have that trigger, not the tables above them.
CREATE OR REPLACE VIEW fence.protected AS
  SELECT t.tgrelid::regclass AS relation, g.resource, g.under, t.tgname AS guard,
         t.tgqual IS NULL AND t.tgattr::text = '' AND t.tgnargs > 0
           AND CASE c.relkind WHEN 'v' THEN t.tgenabled = 'O' AND t.tgtype = 30 AND pg_relation_is_updatable(c.oid, false) = 0
                              ELSE t.tgenabled = 'A' AND t.tgtype = 62 END
           AND (g.per_row IS NULL OR coalesce(r.complete = 3 AND r.number::text = g.number AND r.mode = g.mode AND r.needed IS NULL, false))
           AND (g.per_row IS NOT NULL OR r.complete IS NULL OR r.complete = 2 AND r.needed IS NOT DISTINCT FROM coalesce(g.resource, g.under || '*'))
           AND (r.number IS NULL OR fence.judges_each(c.oid, r.number, r.needed IS NULL, r.mode))
           AND (r.stamp IS NULL OR c.relkind <> 'r' OR EXISTS (
                 SELECT FROM pg_trigger s JOIN pg_proc f ON f.oid = s.tgfoid
                  WHERE s.tgrelid = t.tgrelid AND f.pronamespace = 'fence'::regnamespace AND f.proname = 'stamp_' || r.number
                    AND s.tgenabled = 'A' AND s.tgtype = 23 AND s.tgqual IS NULL AND s.tgattr::text = '')) AS complete,
         g.per_row, g.mode, coalesce(r.stamp, g.later_stamp)::name AS stamp,
         CASE g.mode WHEN 'report' THEN coalesce(pg_sequence_last_value(to_regclass('fence.refused_' || g.number)), 0) END AS would_refuse,
         coalesce(r.number, g.number::integer, y.number) AS number,
         CASE WHEN g.mode = 'enforce' AND to_regclass('fence.refused_' || y.number) IS NOT NULL
              THEN coalesce(pg_sequence_last_value(to_regclass('fence.refused_' || y.number)), 0) END AS refused
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    JOIN (VALUES ('fence.guard'::regproc, 'guard'), ('fence.guard_rows', 'rows'), ('fence.report', 'report')) k(made, kind) ON k.made = t.tgfoid
    LEFT JOIN fence.row_guards r ON r.relation = t.tgrelid
    LEFT JOIN fence.registry y ON y.relation = t.tgrelid,
         LATERAL fence.arguments(t.tgargs) a,
         LATERAL (SELECT nullif(CASE WHEN kind <> 'rows' THEN a[1] END, '') AS resource, nullif(CASE WHEN kind <> 'rows' THEN a[2] END, '') AS under,
                         nullif(CASE kind WHEN 'rows' THEN a[1] WHEN 'report' THEN a[3] END, '') AS per_row,
                         substring(CASE kind WHEN 'rows' THEN a[2] WHEN 'report' THEN a[4] END FROM '^[0-9]{1,9}$') AS number,   -- anybody can put triggers on a table of his own
                         nullif(CASE kind WHEN 'report' THEN a[5] END, '') AS later_stamp,
                         CASE kind WHEN 'report' THEN 'report' ELSE 'enforce' END AS mode) g;
REVOKE ALL ON fence.protected FROM PUBLIC, fence_writer, fence_gateway;
GRANT SELECT ON fence.protected TO PUBLIC;

-- Raises an error unless the caller, who creates or removes a guard, is fence_protector: no other role may use what guards call.
CREATE OR REPLACE FUNCTION fence.need_protector() RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT has_function_privilege('fence.guard()', 'EXECUTE') THEN
    RAISE EXCEPTION 'fence.protect: % may not use fence.guard', current_user USING ERRCODE = 'insufficient_privilege',
      HINT = format('The owner of a protected table is fence_protector: GRANT fence_protector TO %I;', current_user);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.need_protector() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.need_protector() TO PUBLIC;

-- Returns the columns that a table's guards read by name.
CREATE OR REPLACE FUNCTION fence.columns_read(p_number integer, p_stamp name) RETURNS SETOF name LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT unnest(p.proargnames)::name FROM pg_proc p WHERE p.pronamespace = 'fence'::regnamespace AND p.proname = 'resource_of_' || p_number
  UNION SELECT p_stamp WHERE p_stamp IS NOT NULL
$$;
REVOKE ALL ON FUNCTION fence.columns_read(integer, name) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.columns_read(integer, name) TO PUBLIC;

-- Stores a table's guard in the registry, and creates the counter of its refusals. For the table's owner.
CREATE OR REPLACE FUNCTION fence.remember(p_relation regclass) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM fence.registry r WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = r.relation);
  INSERT INTO fence.registry AS r (relation, resource, under, per_row, mode, stamp, number)
  SELECT DISTINCT ON (p.relation) p.relation, p.resource, p.under, p.per_row, p.mode, p.stamp, coalesce(p.number, nextval('fence.protections')) FROM fence.protected p
   WHERE p.relation = p_relation AND p.complete AND EXISTS (SELECT FROM pg_class c WHERE c.oid = p_relation AND pg_has_role(session_user, c.relowner, 'MEMBER'))
  ON CONFLICT (relation) DO UPDATE SET resource = EXCLUDED.resource, under = EXCLUDED.under, per_row = EXCLUDED.per_row, mode = EXCLUDED.mode,
    stamp = EXCLUDED.stamp, number = EXCLUDED.number;
  SELECT fence.make_counter(r.number) FROM fence.registry r WHERE r.relation = p_relation;
$$;
REVOKE ALL ON FUNCTION fence.remember(regclass) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.remember(regclass) TO fence_protector;

-- Creates the guards on one table, as its row in fence.registry will describe them. A guard of the same name is replaced, which
-- waits for writers alone; DROP TRIGGER would wait for readers too. Runs with the caller's rights.
-- fence.install_event_triggers copies this text: it calls nothing of this schema, and its arguments enter commands by %I or %L.
CREATE OR REPLACE FUNCTION fence.put_guards(p_relation regclass, p_resource text, p_under text, p_per_row text, p_mode text, p_stamp name, p_number integer)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kind "char" := (SELECT c.relkind FROM pg_class c WHERE c.oid = p_relation);
  stamped boolean := p_stamp IS NOT NULL AND p_mode = 'enforce';
  stops boolean := p_mode = 'enforce' AND EXISTS (SELECT FROM pg_language l WHERE l.lanname NOT IN ('internal', 'c', 'sql', 'plpgsql'));   -- see moves.sql
  needed text := CASE WHEN p_per_row IS NULL THEN coalesce(p_resource, p_under || '*') ELSE '' END;
  rows text := format('FOR EACH STATEMENT EXECUTE FUNCTION fence.rows_%s(%L, %L, %L)', p_number, p_mode, needed, CASE WHEN stamped THEN p_stamp ELSE '' END);
  has text[] := ARRAY(SELECT t.tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = p_relation AND p.pronamespace = 'fence'::regnamespace);
  guards text[];   -- what follows CREATE, or CREATE OR REPLACE
  guard text;
BEGIN
  IF kind NOT IN ('r', 'p', 'v') THEN
    RAISE EXCEPTION 'fence.protect: % is no ordinary table, so it can''t be guarded here', p_relation USING ERRCODE = 'wrong_object_type',
      HINT = 'A foreign table is protected where it lives.';
  END IF;
  guards := ARRAY[format('TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE %s ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s',
    CASE WHEN kind <> 'v' THEN 'OR TRUNCATE' END, p_relation,
    CASE WHEN p_mode = 'report' THEN format('fence.report(%L, %L, %L, %L, %L)', coalesce(p_resource, ''), coalesce(p_under, ''), coalesce(p_per_row, ''), p_number, coalesce(p_stamp, ''))
         WHEN p_per_row IS NOT NULL THEN format('fence.guard_rows(%L, %L)', p_per_row, p_number)
         WHEN p_resource IS NOT NULL THEN format('fence.guard(%L)', p_resource)
         ELSE format('fence.guard('''', %L)', p_under) END)];
  IF kind <> 'v' AND (p_per_row IS NOT NULL OR stamped) THEN
    guards := guards || format('TRIGGER fence_insert AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows %s', p_relation, rows)
                     || format('TRIGGER fence_update AFTER UPDATE ON %s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows %s', p_relation, rows);
    IF kind = 'p' THEN
      guards := guards || format('TRIGGER fence_moving BEFORE UPDATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fence.mark_move()', p_relation);
    ELSIF stops OR (SELECT c.relispartition FROM pg_class c WHERE c.oid = p_relation) THEN
      guards := guards || format('TRIGGER fence_moved AFTER INSERT %s %s ON %s FOR EACH ROW %s EXECUTE FUNCTION fence.moved_%s(%L, %L)',
                                 CASE WHEN stops THEN 'OR UPDATE' END, CASE WHEN p_per_row IS NOT NULL THEN 'OR DELETE' END, p_relation,
                                 CASE WHEN NOT stops THEN 'WHEN (fence.moving())' END, p_number, p_mode, needed);
    END IF;
  END IF;
  IF kind <> 'v' AND p_per_row IS NOT NULL THEN
    guards := guards || format('TRIGGER fence_delete AFTER DELETE ON %s REFERENCING OLD TABLE AS old_rows %s', p_relation, rows);
  END IF;
  IF kind = 'r' AND stamped THEN
    guards := guards || format('TRIGGER fence_stamp BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION fence.stamp_%s(%L, %L)',
                               p_relation, p_number, p_stamp, needed);
  END IF;
  FOREACH guard IN ARRAY guards LOOP
    EXECUTE concat('CREATE ', CASE WHEN split_part(guard, ' ', 2) = ANY (has) THEN 'OR REPLACE ' END, guard);
  END LOOP;
  IF kind <> 'v' THEN
    EXECUTE format('ALTER TABLE ONLY %s %s', p_relation, (SELECT string_agg('ENABLE ALWAYS TRIGGER ' || split_part(g, ' ', 2), ', ') FROM unnest(guards) g));
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.put_guards(regclass, text, text, text, text, name, integer) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.put_guards(regclass, text, text, text, text, name, integer) TO fence_protector;

-- Returns the guards on a table, its partitions and its children that fence.put_guards does not replace when the rule becomes this
-- one: they have to be dropped.
CREATE OR REPLACE FUNCTION fence.other_guards(p_relation regclass, p_per_row text, p_mode text, p_stamp name) RETURNS TABLE (member regclass, guard name)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT f.member, g.name FROM fence.family(p_relation) f(member) JOIN pg_class c ON c.oid = f.member, fence.guards_of(f.member) g(name),
         LATERAL (SELECT p_stamp IS NOT NULL AND p_mode = 'enforce') s(stamped)
   WHERE NOT CASE g.name
     WHEN 'fence_guard' THEN true
     WHEN 'fence_insert' THEN p_per_row IS NOT NULL OR s.stamped
     WHEN 'fence_update' THEN p_per_row IS NOT NULL OR s.stamped
     WHEN 'fence_moving' THEN c.relkind = 'p' AND (p_per_row IS NOT NULL OR s.stamped)
     WHEN 'fence_moved' THEN c.relkind = 'r' AND (c.relispartition OR p_mode = 'enforce' AND fence.can_stop()) AND (p_per_row IS NOT NULL OR s.stamped)
     WHEN 'fence_delete' THEN p_per_row IS NOT NULL
     WHEN 'fence_stamp' THEN c.relkind = 'r' AND s.stamped
     ELSE false END
$$;
REVOKE ALL ON FUNCTION fence.other_guards(regclass, text, text, name) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.other_guards(regclass, text, text, name) TO PUBLIC;

-- Returns why a view can't be guarded, or NULL if it can. If the view's own triggers do the writing, statement triggers fire on
-- it. If PostgreSQL or a rule rewrites a write into one of another table, only that table's triggers fire.
CREATE OR REPLACE FUNCTION fence.view_fault(p_view regclass) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN pg_relation_is_updatable(p_view, false) <> 0 THEN 'is a view whose writes reach another table: protect that one, whose guard sees them'
              WHEN NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = p_view AND t.tgtype & 64 <> 0) THEN 'is a view that nobody can write to' END
$$;
REVOKE ALL ON FUNCTION fence.view_fault(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.view_fault(regclass) TO PUBLIC;

-- Returns why a text can't be an expression per row, judged by its form, or NULL if it can. PostgreSQL parses it only
-- afterwards, because a role other than its author may run it: one that creates a table in a protected schema, or makes a table
-- enforce. So the text can't leave its parentheses, and names only columns and what is in pg_catalog: no user's function. A type
-- in pg_temp is found without a dot, too. Outside quotes it is ASCII: there regular expressions and PostgreSQL agree on what a
-- word is.
CREATE OR REPLACE FUNCTION fence.text_fault(p_expression text) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  quoted CONSTANT text := E'\'[^\']*\'|"[^"]*"|--[^\n\r]*';
  bare text := regexp_replace(regexp_replace(p_expression, quoted, ' x ', 'g'), '\mpg_catalog\s*[.]', '', 'gi');
BEGIN
  IF octet_length(convert_to(regexp_replace(p_expression, quoted, ' x ', 'g'), 'UTF8')) <> length(regexp_replace(p_expression, quoted, ' x ', 'g')) THEN
    RETURN 'holds a letter outside ASCII: put the name of such a column in quotes';
  ELSIF EXISTS (SELECT FROM regexp_matches(p_expression, E'\'[^\']*\'|--[^\n\r]*|"(?:[^"]|"")*"|[a-z_][a-z_0-9]*', 'gi') w, pg_type t
                 WHERE t.typnamespace = pg_my_temp_schema()
                   AND t.typname = CASE WHEN w[1] LIKE '"%' THEN replace(substr(w[1], 2, length(w[1]) - 2), '""', '"') ELSE lower(w[1]) END) THEN
    RETURN 'names a type, or a table, that is temporary: drop that, or use another session';
  END IF;
  IF strpos(p_expression, chr(92)) > 0 OR bare ~ $q$[;$'"]|/[*]$q$ THEN
    RETURN 'holds a backslash, a $, a semicolon, a /* or half a quote';
  ELSIF strpos(bare, '.') > 0 THEN
    RETURN 'names with a dot what does not come with PostgreSQL: make it a generated column, and name that';
  END IF;
  WHILE bare ~ '[(][^()]*[)]' LOOP
    bare := regexp_replace(bare, '[(][^()]*[)]', ' x ', 'g');
  END LOOP;
  RETURN CASE WHEN bare ~ '[()]' THEN 'is not one expression: a parenthesis lacks its other one' END;
END $$;
REVOKE ALL ON FUNCTION fence.text_fault(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.text_fault(text) TO PUBLIC;

-- Creates an index over the expression, on an empty table with those of the relation's columns whose types come with PostgreSQL,
-- with the caller's rights. So PostgreSQL itself decides whether it is one immutable expression over the row. (coalesce makes an
-- expression of a lone column; planning removes it.) Returns the index. The caller drops the table.
CREATE OR REPLACE FUNCTION fence.probe(p_relation regclass, p_expression text) RETURNS regclass LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('CREATE TEMPORARY TABLE fence_probe (%s)', (SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
   WHERE a.attrelid = p_relation AND a.attnum > 0 AND NOT a.attisdropped AND t.oid < 16384));
  EXECUTE concat('CREATE INDEX fence_probe_index ON pg_temp.fence_probe (coalesce((', p_expression, E'\n)::pg_catalog.text))');
  RETURN 'pg_temp.fence_probe_index'::regclass;
EXCEPTION
  WHEN insufficient_privilege THEN RAISE;
  WHEN undefined_column THEN
    RAISE EXCEPTION 'fence.protect: per_row uses a column that is not there, or whose type does not come with PostgreSQL: %', sqlerrm
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Where its type is your own: make it a generated column, and name that.';
  WHEN OTHERS THEN
    RAISE EXCEPTION 'fence.protect: per_row is no immutable expression over a row of %: %', p_relation, sqlerrm USING ERRCODE = 'invalid_parameter_value',
      HINT = 'It uses columns by their names, and nothing that depends on settings, the time or other rows; for example ''orders/'' || id';
END $$;
REVOKE ALL ON FUNCTION fence.probe(regclass, text) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.probe(regclass, text) TO fence_protector;

-- Returns why a table can't be protected in this way, or NULL if it can.
CREATE OR REPLACE FUNCTION fence.protect_fault(p_relation regclass, p_resource text, p_under text, p_per_row text, p_mode text, p_stamp name) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kind "char" := (SELECT c.relkind FROM pg_class c WHERE c.oid = p_relation);
  fault text := CASE
    WHEN kind IS NULL THEN 'no such table'
    WHEN kind = 'f' THEN format('%s is a foreign table: protect it where it lives', p_relation)
    WHEN kind NOT IN ('r', 'p', 'v') THEN format('%s is not a table', p_relation)
    WHEN coalesce(p_mode, '') NOT IN ('enforce', 'report') THEN 'mode is neither ''enforce'' nor ''report'''
    WHEN num_nonnulls(p_resource, p_under, p_per_row) <> 1 THEN 'give either resource or under or per_row'
    WHEN p_resource IS NOT NULL THEN 'resource ' || fence.resource_fault(p_resource)
    WHEN p_under NOT LIKE '%/' THEN 'under does not end in ''/'''
    WHEN p_under IS NOT NULL THEN 'under ' || fence.resource_fault(p_under)
    WHEN p_per_row IS NOT NULL THEN 'per_row ' || fence.text_fault(p_per_row)
  END;
BEGIN
  IF fault IS NULL AND kind = 'v' THEN
    fault := coalesce(format('%s ', p_relation) || fence.view_fault(p_relation),
                      CASE WHEN num_nonnulls(p_per_row, p_stamp) > 0 THEN 'a view has neither per_row nor stamp' END);
  END IF;
  IF fault IS NULL AND p_stamp IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_relation AND a.attname = p_stamp
       AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid = 'bigint'::regtype AND a.attgenerated = '') THEN
    fault := format('stamp: %s has no ordinary column %I of type bigint', p_relation, p_stamp);
  END IF;
  RETURN fault;
END $$;
REVOKE ALL ON FUNCTION fence.protect_fault(regclass, text, text, text, text, name) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.protect_fault(regclass, text, text, text, text, name) TO PUBLIC;

-- Creates what the guards of a table will call: the functions for its rows, and the counter of report mode. Returns their
-- number, or NULL if nothing is needed.
CREATE OR REPLACE FUNCTION fence.make_number(p_relation regclass, p_per_row text, p_mode text, p_stamp name) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  index regclass;
  number integer;
BEGIN
  IF p_per_row IS NOT NULL THEN
    index := fence.probe(p_relation, p_per_row);
  END IF;
  IF p_per_row IS NOT NULL OR p_stamp IS NOT NULL AND p_mode = 'enforce' THEN
    number := fence.make_rows(index, CASE p_mode WHEN 'enforce' THEN p_stamp END);
  END IF;
  IF p_per_row IS NOT NULL THEN
    DROP TABLE pg_temp.fence_probe;
  END IF;
  IF p_mode = 'report' THEN
    number := fence.make_counter(number);
  END IF;
  RETURN number;
END $$;
REVOKE ALL ON FUNCTION fence.make_number(regclass, text, text, name) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.make_number(regclass, text, text, name) TO fence_protector;

-- Guards a table, its partitions and its inheritance children: afterwards a write without the current grant fails, or, in report
-- mode, is reported. Protecting again replaces the rule, with a NOTICE if the new one differs. Waits for the writers at work, and
-- for readers too if a guard of the earlier rule has no successor. Runs with the caller's rights, as fence.unprotect does.
CREATE OR REPLACE FUNCTION fence.protect(relation regclass, resource text DEFAULT NULL, under text DEFAULT NULL, per_row text DEFAULT NULL,
                              mode text DEFAULT 'enforce', stamp name DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := fence.protect_fault(relation, resource, under, per_row, mode, stamp);
  parent regclass;
  member regclass;
  guard name;
  number integer;
  before fence.registry;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'fence.protect: %', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_protector();

  -- The lock that CREATE TRIGGER takes, or DROP TRIGGER, before the family is read: it blocks a partition that is being attached.
  -- One that is raised later deadlocks with a transaction that has read the table and writes to it.
  IF (SELECT c.relkind <> 'v' FROM pg_class c WHERE c.oid = relation) THEN
    BEGIN
      EXECUTE format('LOCK TABLE %s IN %s MODE', relation,
        CASE WHEN EXISTS (SELECT FROM fence.other_guards(relation, per_row, mode, stamp)) THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END);
    EXCEPTION WHEN SQLSTATE 'ZF000' THEN NULL;   -- never: the lock stays with what the transaction does, see locks.sql
    END;
  END IF;
  SELECT a INTO parent FROM fence.ancestors(relation) a
   WHERE NOT EXISTS (SELECT FROM fence.protected p WHERE p.relation = a AND p.complete AND (p.resource, p.under, p.per_row, p.mode, p.stamp)
                        IS NOT DISTINCT FROM (protect.resource, protect.under, protect.per_row, protect.mode, protect.stamp)) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'fence.protect: % is written through its parent % too, which needs no grant of the same resource', relation, parent
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('Protect %s: its partitions and children come with it.', parent);
  END IF;
  SELECT r.* INTO before FROM fence.registry r
   WHERE r.relation = protect.relation
     AND (r.resource, r.under, r.per_row, r.stamp) IS DISTINCT FROM (protect.resource, protect.under, protect.per_row, protect.stamp);
  IF FOUND THEN
    RAISE NOTICE 'fence.protect: % was protected with %; the new rule replaces that one, and the counts of refusals restart at 0', relation,
      concat_ws(', ', 'resource => ' || quote_literal(before.resource), 'under => ' || quote_literal(before.under),
                'per_row => ' || quote_literal(before.per_row), 'stamp => ' || quote_literal(before.stamp));
  END IF;

  PERFORM fence.leave(m) FROM fence.family(relation) m;
  FOR member, guard IN SELECT * FROM fence.other_guards(relation, per_row, mode, stamp) LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', guard, member);
  END LOOP;
  number := fence.make_number(relation, per_row, mode, stamp);
  FOR member IN SELECT fence.family(relation) LOOP
    PERFORM fence.put_guards(member, resource, under, per_row, mode, stamp, number), fence.remember(member);
  END LOOP;
  PERFORM fence.tidy();
END $$;
REVOKE ALL ON FUNCTION fence.protect(regclass, text, text, text, text, name) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.protect(regclass, text, text, text, text, name) TO PUBLIC;

-- Makes the guards of a table in report mode enforce what they reported.
CREATE OR REPLACE FUNCTION fence.enforce(relation regclass) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  g fence.registry;
BEGIN
  SELECT * INTO g FROM fence.registry r WHERE r.relation = enforce.relation;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fence.enforce: % is not protected', relation USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  PERFORM fence.protect(relation, g.resource, g.under, g.per_row, 'enforce', g.stamp);
END $$;
REVOKE ALL ON FUNCTION fence.enforce(regclass) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.enforce(regclass) TO PUBLIC;

-- Tables that were protected before refusals were counted get their counters here.
UPDATE fence.registry r SET number = pg_catalog.nextval('fence.protections') WHERE r.number IS NULL;
DO $$
BEGIN
  PERFORM fence.make_counter(r.number) FROM fence.registry r;
END $$;
