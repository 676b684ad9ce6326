-- The outcome of a transaction whose COMMIT was not answered.
--
--   SELECT pg_current_xact_id(), fence.server_run();     -- in the transaction, before its COMMIT
--   SELECT fence.outcome('4711', '<that run>');          -- afterwards, on another connection
--
-- pg_xact_status alone is wrong after a crash: the server reuses the number of a transaction that had not reached the disk, and
-- then reports the outcome of the later one (tested). So the server's run is compared too. Every unclean start (a crash, a base
-- backup, recovery to a point in time) resets the statistics and a clean one keeps them, so the time of their reset
-- distinguishes runs. A reset by an operator makes an outcome unknown, never wrong.

-- Returns the run of this server: system identifier, timeline, and, from PostgreSQL 15 on, the time when statistics were last
-- reset. Before 15 the last part is missing, because reading it is slow there: a commit then stays unknown. Some managed
-- services hide the system identifier.
--
-- InTx asks in each transaction. The system identifier is in a file, and stays the same while a session lasts. So it is read
-- once, and kept in a setting of the session. A caller that changes that setting deceives only itself, as one that passes a
-- false run to fence.outcome.
CREATE OR REPLACE FUNCTION fence.server_run() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  system pg_catalog.text := pg_catalog.current_setting('fence.system', true);
BEGIN
  IF system IS NULL OR system OPERATOR(pg_catalog.=) '' THEN
    IF pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
      system := (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c);
    ELSE
      system := '-';
    END IF;
    PERFORM pg_catalog.set_config('fence.system', system, false);
  END IF;
  RETURN pg_catalog.concat(CASE WHEN system OPERATOR(pg_catalog.<>) '-' THEN system END, '/',
    pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8),
    CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 OPERATOR(pg_catalog.>=) 150000
         THEN '/' OPERATOR(pg_catalog.||) pg_catalog.date_part('epoch', pg_catalog.pg_stat_get_bgwriter_stat_reset_time())::pg_catalog.text END);
END $$;
REVOKE ALL ON FUNCTION fence.server_run() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.server_run() TO fence_writer, fence_gateway;

-- Returns 'committed', 'aborted', 'in progress' (ask again), or 'unknown': the server can't tell any more. A transaction that
-- answers 'committed' waits, at its own COMMIT, for the synchronous standbys that the other one may not have waited for.
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
  PERFORM set_config('fence.system', '', false);   -- read it again: the caller may have set it
  now_run := string_to_array(fence.server_run(), '/');
  IF then_run[1:2] IS DISTINCT FROM now_run[1:2] THEN
    RETURN 'unknown';   -- another cluster, or another history of it
  END IF;
  BEGIN
    status := coalesce(pg_xact_status(xid::xid8), 'too old');
  EXCEPTION WHEN invalid_parameter_value THEN
    status := 'in the future';   -- this server has not assigned it: it was lost in a crash
  END;
  IF status = 'too old' THEN
    RETURN 'unknown';
  ELSIF then_run[3] IS DISTINCT FROM now_run[3] OR then_run[3] IS NULL AND status = 'in the future' THEN
    -- The server crashed in between, or its statistics were reset. The number of a transaction whose commit is on disk is never
    -- reused, so one that ended without a commit was never committed. But a committed one may be a later one of the same number.
    RETURN CASE status WHEN 'committed' THEN 'unknown' WHEN 'in progress' THEN status ELSE 'aborted' END;
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
