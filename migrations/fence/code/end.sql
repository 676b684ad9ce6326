-- Ending: a grant ends with its lease. For the gateway only.
--
--   SELECT * FROM fence.end_grants(ARRAY['orders/1001'], ARRAY[35], ARRAY[<seal hash>]);   -- a transaction of its own
--
-- Token, seal and `undrained` stay. A higher token would collide with the next acquisition. Another seal would hide the grant's
-- key from the next drain. Ending drains nobody: a writer that has passed the check may still commit, and the next holder drains
-- it.

-- Ends the grants of fence.end_grants, after their check, in sets. Takes the turns that are free, ends the grants of these, and
-- waits for no turn. Returns what fence.end_grants returns.
CREATE OR REPLACE FUNCTION fence.end_group(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[])
RETURNS TABLE (n int, ended boolean, busy boolean, recorded bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  turns int[] := ARRAY(SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n) JOIN fence.arms a ON a.resource = x.r FOR UPDATE OF a SKIP LOCKED);
BEGIN
  UPDATE fence.resources f SET ended_at = now() FROM unnest(turns) x(n)
   WHERE f.resource = p_resources[x.n] AND f.token = p_tokens[x.n] AND (p_seal_hashes[x.n] IS NULL OR f.seal = p_seal_hashes[x.n]) AND f.ended_at IS NULL;
  RETURN QUERY
  SELECT x.n::int, s.over,
         NOT s.over AND x.n <> ALL (turns) AND EXISTS (SELECT FROM fence.arms a WHERE a.resource = x.r),   -- the search is linear: last
         f.token
    FROM unnest(p_resources) WITH ORDINALITY x(r, n)
    LEFT JOIN fence.resources f ON f.resource = x.r
   CROSS JOIN LATERAL (SELECT coalesce(f.token = p_tokens[x.n] AND (p_seal_hashes[x.n] IS NULL OR f.seal = p_seal_hashes[x.n])
                                       AND f.ended_at IS NOT NULL, false) AS over) s;
END $$;
REVOKE ALL ON FUNCTION fence.end_group(text[], bigint[], bytea[]) FROM PUBLIC, fence_writer, fence_gateway;

-- Ends grants: from the COMMIT on, every check of them answers ZF001. The token names the grant, together with the seal where
-- the caller knows it; with a NULL hash the caller authenticated the token by other means. No other grant changes. The call
-- changes a row only in its turn. It waits at most p_limit in all for other sessions' turns, and keeps the turns that it has; so
-- a call for several grants passes a limit of 0. Returns one row for each grant; n is its position:
-- ended: the grant has ended, by this call or an earlier one, and `recorded` is its token.
-- busy: another session has the turn, most often the raise that supersedes the grant. Nothing was changed.
-- Both false: the fence records another grant, or none. Nothing was changed. A higher `recorded` has superseded the grant.
CREATE OR REPLACE FUNCTION fence.end_grants(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_limit interval DEFAULT '0')
RETURNS TABLE (n int, ended boolean, busy boolean, recorded bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  until timestamptz := clock_timestamp() + p_limit;
  a record;
  fault text := CASE
    WHEN coalesce(cardinality(p_resources), 0) = 0 THEN 'resources are missing'
    WHEN ARRAY[cardinality(p_tokens), cardinality(p_seal_hashes)] IS DISTINCT FROM array_fill(cardinality(p_resources), ARRAY[2])
      THEN 'tokens and seal hashes are not as many as resources'
    WHEN EXISTS (SELECT FROM unnest(p_tokens) t WHERE coalesce(t, 0) <= 0) THEN 'token is not a positive number'
    WHEN EXISTS (SELECT FROM unnest(p_seal_hashes) h WHERE octet_length(h) <> 32) THEN 'seal hash is not 32 bytes long'
    ELSE (SELECT min('resource ' || fence.resource_fault(x)) FROM unnest(p_resources) x)
  END;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();
  PERFORM fence.commit_durably();
  IF p_limit = '0' AND cardinality(p_resources) > 1 THEN
    RETURN QUERY SELECT * FROM fence.end_group(p_resources, p_tokens, p_seal_hashes);
    RETURN;
  END IF;
  FOR a IN SELECT * FROM unnest(p_resources, p_tokens, p_seal_hashes) WITH ORDINALITY x(r, token, seal_hash, n) ORDER BY x.r COLLATE "C", x.n LOOP
    n := a.n;
    PERFORM FROM fence.arms w WHERE w.resource = a.r FOR UPDATE SKIP LOCKED;
    -- A resource without a row in fence.arms has no fence: both columns are false.
    busy := NOT FOUND AND EXISTS (SELECT FROM fence.arms w WHERE w.resource = a.r)
      AND (clock_timestamp() >= until OR NOT fence.take_turn(a.r, 1000 * extract(epoch FROM until - clock_timestamp())));
    IF NOT busy THEN
      UPDATE fence.resources f SET ended_at = now()
       WHERE f.resource = a.r AND f.token = a.token AND (a.seal_hash IS NULL OR f.seal = a.seal_hash) AND f.ended_at IS NULL;
    END IF;
    SELECT f.token, f.token = a.token AND (a.seal_hash IS NULL OR f.seal = a.seal_hash) AND f.ended_at IS NOT NULL
      INTO recorded, ended FROM fence.resources f WHERE f.resource = a.r;
    ended := coalesce(ended, false);
    busy := busy AND NOT ended;
    RETURN NEXT;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.end_grants(text[], bigint[], bytea[], interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.end_grants(text[], bigint[], bytea[], interval) TO fence_gateway;

-- Ends the session with this process id, if its client's port is p_port. Returns whether the signal was sent. For a gateway that
-- holds the other end of that connection and wants it closed. Returns false for a superuser's session, and for one that
-- pg_stat_activity does not show.
CREATE OR REPLACE FUNCTION fence.end_backend(p_pid int, p_port int) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = p_pid AND a.client_port = p_port AND p_port > 0 AND a.backend_type = 'client backend'
                AND a.datname = current_database() AND a.pid <> pg_backend_pid()) THEN
    RETURN pg_terminate_backend(p_pid);
  END IF;
  RETURN false;
EXCEPTION WHEN insufficient_privilege THEN
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.end_backend(integer, integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.end_backend(integer, integer) TO fence_gateway;
