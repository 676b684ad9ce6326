-- The group of leases that this database is, so that several databases may share Redis nodes.
--
--   SELECT * FROM fence.lock_group();              -- its keys begin with 'fencegate:' || id
--   SELECT * FROM fence.new_group();               -- in a copy; a transaction of its own, committed
--   SELECT * FROM fence.drain_invalidated();       -- another one, after that COMMIT
--
-- fence.identity() can't serve as the name: it contains the timeline, so a promotion would hide all locks. This id stays. A
-- copied database has the id of the original until it gets its own.

-- id: the group. database: distinguishes a database from its copies in the same cluster. fence.identity() does not: CREATE
-- DATABASE with a TEMPLATE keeps the oids of tables.
CREATE OR REPLACE FUNCTION fence.lock_group(OUT id uuid, OUT database oid) LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT g.id INTO STRICT id FROM fence.lock_group g;
  SELECT d.oid INTO STRICT database FROM pg_database d WHERE d.datname = current_database();
EXCEPTION WHEN no_data_found THEN
  RAISE EXCEPTION 'fence.lock_group is empty: nobody knows which keys on the Redis nodes are this database''s' USING ERRCODE = 'no_data_found',
    HINT = 'It was restored without its row. With every gateway stopped, as who migrates: fencegate fence new-group --yes';
END $$;
REVOKE ALL ON FUNCTION fence.lock_group() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.lock_group() TO fence_writer, fence_gateway;

-- Makes this database a group of its own, which knows no lock of the old one. It raises every fence, as fence.invalidate_all
-- does: grants of the old group are refused here. The old group's keys stay: they belong to the original database. For the
-- schema's owner, in a copy: it ends every lease of this database.
CREATE OR REPLACE FUNCTION fence.new_group(p_limit interval DEFAULT '5 s', OUT id uuid, OUT before uuid, OUT database text, OUT raised bigint, OUT unsealed bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT i.raised, i.unsealed INTO STRICT raised, unsealed FROM fence.invalidate_all(true, p_limit) i;
  SELECT g.id INTO before FROM fence.lock_group g;
  id := gen_random_uuid();
  database := current_database();
  INSERT INTO fence.lock_group AS g (id) VALUES (new_group.id) ON CONFLICT (only_row) DO UPDATE SET id = excluded.id;
END $$;
REVOKE ALL ON FUNCTION fence.new_group(interval) FROM PUBLIC, fence_writer, fence_gateway;
