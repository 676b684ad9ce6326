-- What became of a transaction whose COMMIT was not answered.
--
--   SELECT pg_current_xact_id(), fence.server_run();     -- in the transaction, before its COMMIT
--   SELECT fence.outcome('4711', '<that run>');          -- afterwards, on another connection
--
-- pg_xact_status alone lies after a crash: the number of a transaction that had not reached the disk is given out again, and
-- says what became of the later one (tested). So the run of the server is compared too. Statistics are reset by every start
-- that is not a clean one (a crash, a base backup, recovery to a point in time) and kept over a clean one, so the time of
-- their reset tells runs apart. Resetting them by hand makes an outcome unknown, never wrong.

-- Names the run of this server: system identifier, timeline, and, from PostgreSQL 15 on, when statistics were last reset.
-- Before 15 the last part is missing, because reading it is slow there: a commit then stays unknown. Some managed services
-- keep the system identifier to themselves.
CREATE OR REPLACE FUNCTION fence.server_run() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  system pg_catalog.text := '';
  run pg_catalog.text := pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8);
BEGIN
  IF pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
    SELECT c.system_identifier INTO system FROM pg_catalog.pg_control_system() c;
  END IF;
  IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 OPERATOR(pg_catalog.>=) 150000 THEN
    run := pg_catalog.concat(run, '/', pg_catalog.date_part('epoch', pg_catalog.pg_stat_get_bgwriter_stat_reset_time()));
  END IF;
  RETURN pg_catalog.concat(system, '/', run);
END $$;
REVOKE ALL ON FUNCTION fence.server_run() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.server_run() TO fence_writer, fence_gateway;

-- 'committed', 'aborted', 'in progress' (ask again), or 'unknown': nobody can tell any more. A transaction that answers
-- 'committed' waits, at its own COMMIT, for the synchronous standbys that the other one may not have waited for.
CREATE OR REPLACE FUNCTION fence.outcome(xid text, run text) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  then_run text[] := string_to_array(run, '/');
  now_run text[];
  status text;
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN 'unknown';
  END IF;
  now_run := string_to_array(fence.server_run(), '/');
  IF then_run[1:2] IS DISTINCT FROM now_run[1:2] THEN
    RETURN 'unknown';   -- another cluster, or another history of it
  END IF;
  BEGIN
    status := coalesce(pg_xact_status(xid::xid8), 'too old');
  EXCEPTION WHEN invalid_parameter_value THEN
    status := 'in the future';   -- as far as this server knows: it was lost in a crash
  END;
  IF status = 'too old' THEN
    RETURN 'unknown';
  ELSIF then_run[3] IS DISTINCT FROM now_run[3] OR then_run[3] IS NULL AND status = 'in the future' THEN
    -- Crashed in between. Had it been committed on disk, its number would not have been given out again: so whatever is not
    -- committed now never was. But what is committed may be a later one of the same number.
    RETURN CASE WHEN status = 'committed' THEN 'unknown' ELSE 'aborted' END;
  ELSIF then_run[3] IS NULL AND status = 'committed' OR status = 'in the future' THEN
    RETURN 'unknown';
  END IF;
  IF status = 'committed' THEN
    PERFORM fence.commit_durably();
    PERFORM pg_logical_emit_message(true, 'fencegate', '');   -- something to wait for
  END IF;
  RETURN status;
END $$;
REVOKE ALL ON FUNCTION fence.outcome(text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.outcome(text, text) TO fence_writer, fence_gateway;
