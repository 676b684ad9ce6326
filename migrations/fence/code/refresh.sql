-- Recreating the guards of a table, with functions of the present generation.

-- Tables whose guards call functions of an older generation, which still work. A partition or child is listed if its functions
-- are not those of the table above it.
CREATE OR REPLACE VIEW fence.outdated AS
  SELECT r.relation, o.generation
    FROM fence.registry r JOIN pg_proc p ON p.pronamespace = 'fence'::regnamespace AND p.proname = 'rows_' || r.number,
         LATERAL (SELECT coalesce(substring(obj_description(p.oid, 'pg_proc') FROM '^generation ([0-9]{1,9})$')::integer, 0)) o(generation)
   WHERE o.generation < fence.generation()
     AND NOT EXISTS (SELECT FROM pg_inherits i JOIN fence.registry a ON a.relation = i.inhparent WHERE i.inhrelid = r.relation AND a.number = r.number);
REVOKE ALL ON fence.outdated FROM PUBLIC, fence_writer, fence_gateway;
GRANT SELECT ON fence.outdated TO PUBLIC;

-- Recreates the guards of a table, its partitions and children, so that they call functions of this generation. For the table's
-- owner, as fence.protect. Locks the table, and waits at most `patience` for each lock. Raises 55P03 after that. The
-- counts of fence.protected restart at 0.
CREATE OR REPLACE FUNCTION fence.refresh(relation regclass, patience interval DEFAULT '3 s') RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  g fence.registry;
  before text := current_setting('lock_timeout');
BEGIN
  SELECT * INTO g FROM fence.registry r WHERE r.relation = refresh.relation;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fence.refresh: % is not protected', relation USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  PERFORM set_config('lock_timeout', greatest(1, ceil(1000 * extract(epoch FROM patience)))::text, true);
  PERFORM fence.protect(relation, g.resource, g.under, g.per_row, g.mode, g.stamp);
  PERFORM set_config('lock_timeout', before, true);
END $$;
REVOKE ALL ON FUNCTION fence.refresh(regclass, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.refresh(regclass, interval) TO PUBLIC;
