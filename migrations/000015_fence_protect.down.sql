-- Puts back what 000004_fence_protect made.
DROP FUNCTION fence.enforce(regclass);
DROP FUNCTION fence.protect(regclass, text, text, text, text, name);
DROP FUNCTION fence.probe(regclass, text);
DROP FUNCTION fence.text_fault(text);
DROP FUNCTION fence.view_fault(regclass);
DROP FUNCTION fence.put_guards(fence.registry);
DROP FUNCTION fence.need_writer();
DROP VIEW fence.protected;
DROP VIEW fence.row_guards;

SET ROLE fence_owner;
DELETE FROM fence.registry WHERE num_nonnulls(resource, under) = 0 OR mode <> 'enforce';
REVOKE SELECT ON fence.registry FROM PUBLIC;
ALTER TABLE fence.registry
  DROP CONSTRAINT registry_check,
  DROP COLUMN per_row, DROP COLUMN mode, DROP COLUMN stamp, DROP COLUMN number,
  ADD CONSTRAINT registry_check CHECK (num_nonnulls(resource, under) = 1);

CREATE VIEW fence.protected AS
  SELECT t.tgrelid::regclass AS relation,
         nullif(convert_from(substring(t.tgargs FROM 1 FOR greatest(a.first - 1, 0)), getdatabaseencoding()), '') AS resource,
         nullif(convert_from(trim(TRAILING decode('00', 'hex') FROM substring(t.tgargs FROM a.first + 1)), getdatabaseencoding()), '') AS under,
         t.tgname AS guard,
         -- 62: BEFORE STATEMENT, INSERT, UPDATE, DELETE, TRUNCATE; without WHEN or UPDATE OF, and told what to guard
         t.tgenabled = 'A' AND t.tgtype = 62 AND t.tgqual IS NULL AND t.tgattr::text = '' AND t.tgnargs > 0 AS complete
    FROM pg_trigger t, LATERAL (SELECT position(decode('00', 'hex') IN t.tgargs)) a(first)
   WHERE t.tgfoid = 'fence.guard'::regproc;
GRANT SELECT ON fence.protected TO PUBLIC;

CREATE OR REPLACE FUNCTION fence.remember(p_relation regclass) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO fence.registry AS r (relation, resource, under)
  SELECT DISTINCT ON (p.relation) p.relation, p.resource, p.under FROM fence.protected p WHERE p.relation = p_relation AND p.complete
  ON CONFLICT (relation) DO UPDATE SET resource = EXCLUDED.resource, under = EXCLUDED.under
$$;

CREATE OR REPLACE FUNCTION fence.forget(p_relation regclass) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM fence.registry r
   WHERE r.relation = p_relation AND NOT EXISTS (SELECT FROM fence.protected p WHERE p.relation = p_relation)
     AND EXISTS (SELECT FROM pg_class c WHERE c.oid = p_relation AND pg_has_role(session_user, c.relowner, 'MEMBER'))
$$;

CREATE VIEW fence.uncovered AS
  SELECT p.relation, format('guard %I is disabled or does not cover every kind of write', p.guard) AS reason
    FROM fence.protected p WHERE NOT p.complete
  UNION ALL
  SELECT r.relation, 'its guard was dropped or changed: protect it again, or unprotect it'
    FROM fence.registry r JOIN pg_class c ON c.oid = r.relation
   WHERE NOT EXISTS (SELECT FROM fence.protected p WHERE p.relation = r.relation
                        AND (p.resource, p.under) IS NOT DISTINCT FROM (r.resource, r.under))
  UNION ALL
  SELECT DISTINCT d.relation, 'is a partition or child of a protected table and has no guard'
    FROM fence.protected p, fence.family(p.relation) d(relation)
   WHERE NOT EXISTS (SELECT FROM fence.protected g WHERE g.relation = d.relation)
  UNION ALL
  SELECT DISTINCT p.relation, format('is written through its parent %s, %s', a.relation,
           CASE WHEN EXISTS (SELECT FROM fence.protected g WHERE g.relation = a.relation)
                THEN 'whose guard needs another resource' ELSE 'which has no guard' END)
    FROM fence.protected p, fence.ancestors(p.relation) a(relation)
   WHERE NOT EXISTS (SELECT FROM fence.protected g WHERE g.relation = a.relation
                        AND (g.resource, g.under) IS NOT DISTINCT FROM (p.resource, p.under));
GRANT SELECT ON fence.uncovered TO PUBLIC;

CREATE OR REPLACE FUNCTION fence.unprotect(relation regclass) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  g record;
  member regclass;
BEGIN
  FOR g IN SELECT p.relation, p.guard FROM fence.protected p
            WHERE p.relation IN (SELECT fence.family(unprotect.relation)) LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', g.guard, g.relation);
  END LOOP;
  FOR member IN SELECT fence.family(relation) LOOP
    PERFORM fence.forget(member);
  END LOOP;
END $$;

CREATE FUNCTION fence.protect(relation regclass, resource text DEFAULT NULL, under text DEFAULT NULL,
                              per_row text DEFAULT NULL, mode text DEFAULT 'enforce') RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kind "char" := (SELECT c.relkind FROM pg_class c WHERE c.oid = relation);
  fault text := CASE
    WHEN per_row IS NOT NULL THEN 'a resource per row (per_row) is not implemented yet'
    WHEN mode = 'report' THEN 'the mode "report" is not implemented yet'
  END;
  member regclass;
  parent regclass;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'fence.protect: %', fault USING ERRCODE = 'feature_not_supported';
  END IF;
  fault := CASE
    WHEN kind IS NULL THEN 'no such table'
    WHEN kind NOT IN ('r', 'p') THEN format('%s is not a table', relation)
    WHEN mode IS DISTINCT FROM 'enforce' THEN 'mode is neither ''enforce'' nor ''report'''
    WHEN num_nonnulls(resource, under) <> 1 THEN 'give either resource or under'
    WHEN resource IS NOT NULL THEN 'resource ' || fence.resource_fault(resource)
    WHEN under NOT LIKE '%/' THEN 'under does not end in ''/'''
    ELSE 'under ' || fence.resource_fault(under)
  END;
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'fence.protect: %', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;

  IF NOT has_function_privilege('fence.guard()', 'EXECUTE') THEN
    RAISE EXCEPTION 'fence.protect: % may not use fence.guard', current_user USING ERRCODE = 'insufficient_privilege',
      HINT = format('The owner of a protected table is fence_writer: GRANT fence_writer TO %I;', current_user);
  END IF;

  -- The lock that CREATE TRIGGER takes, before the family is read: it holds off a partition that is being attached.
  EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', relation);
  SELECT a INTO parent FROM fence.ancestors(relation) a
   WHERE NOT EXISTS (SELECT FROM fence.protected p WHERE p.relation = a AND p.complete
                        AND (p.resource, p.under) IS NOT DISTINCT FROM (protect.resource, protect.under)) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'fence.protect: % is written through its parent % too, which needs no grant of the same resource', relation, parent
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('Protect %s: its partitions and children come with it.', parent);
  END IF;
  PERFORM fence.unprotect(relation);
  FOR member IN SELECT fence.family(relation) LOOP
    EXECUTE format('CREATE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION fence.guard(%s)', member,
                   CASE WHEN resource IS NULL THEN format('%L, %L', '', under) ELSE quote_literal(resource) END);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER fence_guard', member);
    PERFORM fence.remember(member);
  END LOOP;
END $$;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 14';
