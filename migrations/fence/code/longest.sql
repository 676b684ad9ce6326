-- The longest TTL in use: the length of a quarantine after a loss of lock nodes that no other node survived.
--
-- A node grants no TTL above the maximum that it was given, and it is given only a maximum that is committed here. So the value
-- read here after a node's loss is no shorter than any lease that the node granted under this record. The record counts for a
-- group of nodes once all of them were admitted under it (kept): then no node grants by an older maximum, and no earlier lease
-- lasts longer.
--
-- The record begins anew, unkept, if leases may be longer than it says: on another server, timeline or copy (history), after
-- fence.invalidate_all, and after fence.raise_epoch, by which programs without a record admit nodes.

-- Returns a new epoch, above p_above and the last one. The record stays as it is.
CREATE OR REPLACE FUNCTION fence.next_epoch(p_above bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  allocated bigint;
BEGIN
  PERFORM fence.commit_durably();
  UPDATE fence.epochs SET epoch = greatest(epoch, p_above) + 1 RETURNING epoch INTO STRICT allocated;
  RETURN allocated;
EXCEPTION WHEN check_violation OR numeric_value_out_of_range THEN
  RAISE EXCEPTION 'no epoch is left above %: epochs end at 2097151', p_above USING ERRCODE = 'program_limit_exceeded';
END $$;
REVOKE ALL ON FUNCTION fence.next_epoch(bigint) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.next_epoch(bigint) TO fence_gateway;

-- Raises the record to at least p_ms, durably once committed, and returns it. Writes only if the record was lower.
CREATE OR REPLACE FUNCTION fence.raise_longest(p_group text, p_ms bigint, OUT record bigint, OUT longest bigint, OUT kept boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  here text := fence.record_history();
BEGIN
  PERFORM fence.commit_durably();
  SELECT e.record, e.longest, p_group = ANY (e.kept) INTO record, longest, kept
    FROM fence.epochs e WHERE e.longest >= p_ms AND e.history = here;
  IF FOUND THEN
    RETURN;
  END IF;
  -- A lost history has begun fewer records than the step.
  UPDATE fence.epochs e
     SET record = e.record + CASE WHEN e.history <> here THEN 1048576 WHEN e.longest IS NULL THEN 1 ELSE 0 END,
         longest = CASE WHEN e.history = here THEN greatest(e.longest, p_ms) ELSE p_ms END,
         kept = CASE WHEN e.history = here AND e.longest IS NOT NULL THEN e.kept ELSE '{}' END,
         history = here
  RETURNING e.record, e.longest, p_group = ANY (e.kept) INTO STRICT record, longest, kept;
END $$;
REVOKE ALL ON FUNCTION fence.raise_longest(text, bigint) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.raise_longest(text, bigint) TO fence_gateway;

-- Records whether all nodes of a group were found admitted under a record. A record that is not the present one is not kept.
CREATE OR REPLACE FUNCTION fence.keep_longest(p_group text, p_record bigint, p_kept boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.commit_durably();
  UPDATE fence.epochs e SET kept = array_remove(e.kept, p_group) || CASE WHEN p_kept THEN ARRAY[p_group] ELSE '{}' END
   WHERE e.record = p_record AND e.longest IS NOT NULL AND e.history = fence.record_history() AND (p_group = ANY (e.kept)) <> p_kept;
END $$;
REVOKE ALL ON FUNCTION fence.keep_longest(text, bigint, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.keep_longest(text, bigint, boolean) TO fence_gateway;

-- The history that a record counts for. A copy by CREATE DATABASE ... TEMPLATE has another oid, and a standby may lag.
CREATE OR REPLACE FUNCTION fence.record_history() RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'this server is a standby, whose record of the longest TTL may lag' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  RETURN (SELECT i.identity || '/' || d.oid FROM fence.identity() i, pg_database d WHERE d.datname = current_database());
END $$;
REVOKE ALL ON FUNCTION fence.record_history() FROM PUBLIC, fence_writer, fence_gateway;
