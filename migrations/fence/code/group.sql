-- Arming in groups: the concurrent calls of several callers in one transaction. For the gateway only.
--
--   SELECT fence.arm_group(ARRAY['a', 'b'], ARRAY[35, 7], ARRAY[<seal hash>, <seal hash>], ARRAY['', '']);   -- a transaction of its own, committed
--
-- It does what fence.arm does for each element, with the same proof (see arm.sql). No element can delay or fail another:
-- - Nothing in it waits. A turn or key that is not free at once is left to fence.raise and fence.drain.
-- - All that can fail comes before the first change of a fence. A raise that is rolled back leaves xmax <> 0, and sends checks
--   at REPEATABLE READ down the slow path. For the same reason no fence changes in a savepoint.
-- The caller passes at most 64 names, each once, in the order of their bytes: each takes one or two entries of PostgreSQL's lock
-- table.

-- Arms several grants. Returns one element for each. true: the fence holds this grant, by this call, and no writer of an older
-- one is in flight. false: nothing was changed, and fence.raise and fence.drain have to decide. The settings keep the plans
-- those of a large table.
CREATE OR REPLACE FUNCTION fence.arm_group(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_holders text[]) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  turns int[] := '{}';    -- positions whose turn this session has
  made int[];             -- positions that had no row in fence.arms, and so no fence
  first int[] := '{}';    -- positions whose first grant this is
  ready int[] := '{}';    -- positions whose superseded keys are free
  places tid[];           -- places of their rows
  m int;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN
    -- Take the turns among the sessions that change the rows, as in fence.raise.
    turns := ARRAY(SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n) JOIN fence.arms a ON a.resource = x.r FOR UPDATE OF a SKIP LOCKED);
    IF cardinality(turns) < cardinality(p_resources) THEN
      made := ARRAY(SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n)
                     WHERE x.n <> ALL (turns) AND NOT EXISTS (SELECT FROM fence.arms a WHERE a.resource = x.r)
                       AND fence.resource_fault(x.r) IS NULL AND p_tokens[x.n] > 0 AND coalesce(octet_length(p_seal_hashes[x.n]), 32) = 32
                       AND fence.first_turn(x.r));
      IF made <> '{}' THEN
        WITH rows AS (INSERT INTO fence.arms (resource) SELECT p_resources[x.n] FROM unnest(made) x(n) ON CONFLICT DO NOTHING RETURNING resource)
        SELECT coalesce(array_agg(x.n), '{}') INTO made FROM unnest(made) x(n) JOIN rows ON rows.resource = p_resources[x.n];
        FOREACH m IN ARRAY made LOOP   -- this session has its turn, so nothing waits
          IF (SELECT raised FROM fence.raise(p_resources[m], p_tokens[m], p_seal_hashes[m], p_holders[m])) THEN
            first := first || m;
          END IF;
        END LOOP;
      END IF;
    END IF;

    -- CASE locks the keys only if the rest holds. The search goes backwards, as in fence.arm. A row that another session has
    -- moved by then, as an end does, is left alone.
    SELECT coalesce(array_agg(x.n), '{}'), coalesce(array_agg(f.place), '{}') INTO ready, places
      FROM unnest(turns) x(n)
      JOIN LATERAL (SELECT r.ctid AS place, r.* FROM fence.resources r
                     WHERE r.resource >= p_resources[x.n] AND r.resource <= p_resources[x.n] ORDER BY r.resource DESC LIMIT 1) f ON true
     WHERE coalesce(octet_length(p_seal_hashes[x.n]), 32) = 32
       AND CASE WHEN f.token < p_tokens[x.n] AND cardinality(f.undrained) <= 1
                 AND fence.key(f.resource, p_tokens[x.n], p_seal_hashes[x.n]) <> ALL (f.undrained || fence.key(f.resource, f.token, f.seal))
                THEN fence.try_lock(fence.key(f.resource, f.token, f.seal), true)
                 AND (f.undrained = '{}' OR fence.try_lock(f.undrained[1], true)) END;

    WITH changed AS (
      UPDATE fence.resources f
         SET token = p_tokens[x.n], seal = p_seal_hashes[x.n], holder = coalesce(p_holders[x.n], ''), armed_at = now(), ended_at = NULL, undrained = '{}'
        FROM unnest(ready, places) x(n, place)
       WHERE f.ctid = x.place AND f.resource || '' = p_resources[x.n]   -- another row may be there by now; || '' avoids the index
      RETURNING x.n)
    SELECT coalesce(array_agg(n), '{}') INTO ready FROM changed;
  END IF;
  RETURN ARRAY(SELECT n = ANY (first || ready) FROM generate_subscripts(p_resources, 1) n ORDER BY n);
END $$;
REVOKE ALL ON FUNCTION fence.arm_group(text[], bigint[], bytea[], text[]) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.arm_group(text[], bigint[], bytea[], text[]) TO fence_gateway;
