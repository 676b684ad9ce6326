-- Leases without another lock service: PostgreSQL decides who holds a resource, and for how long.
--
--   SELECT * FROM fence.take_leases(...);     -- several at once, those that are free and need no wait
--   SELECT * FROM fence.take_lease(...);      -- one, waiting for its turn; then fence.drain in a transaction of its own
--   SELECT * FROM fence.extend_leases(...);
--   SELECT * FROM fence.free_leases(...);
--
-- Each is a transaction of its own. Taking a lease raises the fence in the same COMMIT, so the token is the recorded one plus
-- one:
--  * A session that takes or frees a lease has the resource's turn, its row in fence.arms, as every session that changes its
--    fence.
--  * Then it locks the lease's row, and then reads the clock. Extending locks that row alone. So a lease that has ended is never
--    extended, and one that was extended in time is never taken.
--  * take_leases grants a lease if the superseded grant's keys are free (see arm.sql): nothing is left to drain. take_lease
--    commits raise and lease, and its caller has no lease before fence.drain has returned after that COMMIT.
-- Time is this server's clock alone: a holder counts its deadline from before its request. A clock that jumps ahead ends leases
-- too early, and the fence refuses holders that do not know. Times to live are microseconds.
--
-- A session waits 5 seconds for a lease's row that another transaction has locked, then raises lock_not_available: the caller
-- repeats.
--
-- Waiting: a process that finds a resource held enters fence.lease_waiters, with the resource's turn, and listens on its own
-- channel. The session that frees the resource notifies the first of them. Without waiters it notifies nobody: a COMMIT with a
-- NOTIFY takes a lock of the whole server. A notification is a hint, so a waiter also polls from time to time, and keeps its
-- place by that.

-- Returns this server's identity; NULL on a standby. See fence.identity.
CREATE OR REPLACE FUNCTION fence.server_identity() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  system text := '';
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN NULL;
  END IF;
  IF has_function_privilege('fence_owner', 'pg_control_system()', 'EXECUTE') THEN
    system := (pg_control_system()).system_identifier;   -- an expression: half of what a query costs
  END IF;
  RETURN format('%s/%s/%s', system, ('x' || lpad(left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 16, '0'))::bit(64)::bigint,
                'fence.resources'::regclass::oid);
END $$;
REVOKE ALL ON FUNCTION fence.server_identity() FROM PUBLIC, fence_writer, fence_gateway;

-- Records the source of this database's leases, if none is recorded. Returns the recorded one.
CREATE OR REPLACE FUNCTION fence.claim_source(p_source text) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s record;
BEGIN
  SELECT l.source INTO STRICT s FROM fence.lease_source l;
  IF s.source IS NULL THEN
    IF NOT fence.is_source(p_source) THEN
      RAISE EXCEPTION 'source is none of postgres, redis, etcd, zookeeper, kubernetes, other' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM fence.commit_durably();
    UPDATE fence.lease_source l SET source = p_source, identity = fence.server_identity() WHERE l.source IS NULL;
    SELECT l.source INTO STRICT s FROM fence.lease_source l;
  END IF;
  RETURN s.source;
END $$;
REVOKE ALL ON FUNCTION fence.claim_source(text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.claim_source(text) TO fence_gateway, fence_locker;

-- Raises an error unless this server may grant leases: the source is PostgreSQL, and it is the accepted server.
CREATE OR REPLACE FUNCTION fence.need_source() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s record;
  here text := fence.server_identity();
BEGIN
  IF here IS NULL THEN
    RAISE EXCEPTION 'PostgreSQL is a standby here, where no lease can be given' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  SELECT l.source, l.identity INTO STRICT s FROM fence.lease_source l WHERE l.only_row;   -- by its index: see enable_seqscan below
  IF s.source IS NULL THEN
    s.source := fence.claim_source('postgres');
    s.identity := here;
  END IF;
  IF s.source <> 'postgres' THEN
    RAISE EXCEPTION 'leases of this database come from %, not from PostgreSQL', s.source USING ERRCODE = 'ZF101',
      HINT = 'With every gateway stopped, as who migrates: fencegate fence source postgres --yes';
  ELSIF s.identity IS DISTINCT FROM here THEN
    RAISE EXCEPTION 'PostgreSQL may have forgotten fences: it is % now and was %', here, s.identity USING ERRCODE = 'ZF102',
      HINT = 'To go on: fencegate fence invalidate-all --yes';
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.need_source() FROM PUBLIC, fence_writer, fence_gateway;

-- Ends every lease and accepts this server, as a part of fence.invalidate_all, which has raised every fence.
CREATE OR REPLACE FUNCTION fence.end_leases() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fence.leases l SET owner = '', ends_at = '-infinity' WHERE l.ends_at > '-infinity';
  UPDATE fence.lease_source l SET identity = fence.server_identity() WHERE l.source IS NOT NULL;
END $$;
REVOKE ALL ON FUNCTION fence.end_leases() FROM PUBLIC, fence_writer, fence_gateway;

-- Takes the leases that are free, at most 64, each resource once, in the order of the names' bytes. Nothing in it waits, and all
-- that can fail comes before the first change of a fence, as in fence.arm_group.
-- p_behind: take it only if no process waits for the resource. Returns one row for each; n is its position:
-- taken: the lease is the owner's, its fence stands at `token`, and no writer of an older grant is in flight.
-- held: another owner has it, `holder`, for `left_us` more; or other processes wait for it.
-- Both false: fence.take_lease has to decide; nothing was changed.
CREATE OR REPLACE FUNCTION fence.take_leases(p_resources text[], p_owners text[], p_ttls bigint[], p_seal_hashes bytea[], p_holders text[],
                                 p_behind boolean[])
RETURNS TABLE (n integer, taken boolean, held boolean, token bigint, holder text, left_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  asked int[];            -- positions that may be free
  turns int[] := '{}';    -- positions whose turn this session has
  made int[] := '{}';     -- positions that had no row in fence.arms, and so no fence
  first int[] := '{}';    -- positions whose first grant this is
  free int[] := '{}';     -- positions whose lease has ended, and is locked, or that had none
  ready int[] := '{}';    -- positions whose superseded keys are free
  tokens bigint[] := array_fill(0::bigint, ARRAY[cardinality(p_resources)]);
  m int;
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM fence.need_source();
  PERFORM fence.commit_durably();
  asked := ARRAY(SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n)
                  WHERE NOT EXISTS (SELECT FROM fence.leases l WHERE l.resource = x.r AND l.ends_at > clock_timestamp())
                    AND NOT (p_behind[x.n] AND EXISTS (SELECT FROM fence.lease_waiters w WHERE w.resource = x.r AND w.until > clock_timestamp()))
                    AND p_owners[x.n] <> '' AND p_ttls[x.n] > 0 AND coalesce(octet_length(p_seal_hashes[x.n]), 0) = 32);
  IF asked <> '{}' THEN
    turns := ARRAY(SELECT x.n FROM unnest(asked) x(n) JOIN fence.arms a ON a.resource = p_resources[x.n] FOR UPDATE OF a SKIP LOCKED);
    IF cardinality(turns) < cardinality(asked) THEN
      made := ARRAY(SELECT x.n FROM unnest(asked) x(n)
                     WHERE x.n <> ALL (turns) AND NOT EXISTS (SELECT FROM fence.arms a WHERE a.resource = p_resources[x.n])
                       AND fence.resource_fault(p_resources[x.n]) IS NULL AND fence.first_turn(p_resources[x.n]));
      IF made <> '{}' THEN
        WITH rows AS (INSERT INTO fence.arms (resource) SELECT p_resources[x.n] FROM unnest(made) x(n) ON CONFLICT DO NOTHING RETURNING resource)
        SELECT coalesce(array_agg(x.n), '{}') INTO made FROM unnest(made) x(n) JOIN rows ON rows.resource = p_resources[x.n];
      END IF;
    END IF;

    -- With the turn, and the row locked, read the clock again: the lease may have been taken, or extended, since.
    free := ARRAY(SELECT x.n FROM unnest(turns || made) x(n) JOIN fence.leases l ON l.resource = p_resources[x.n]
                   WHERE l.ends_at <= clock_timestamp() FOR UPDATE OF l SKIP LOCKED);
    IF cardinality(free) < cardinality(turns || made) THEN
      free := free || ARRAY(SELECT x.n FROM unnest(turns || made) x(n) WHERE NOT EXISTS (SELECT FROM fence.leases l WHERE l.resource = p_resources[x.n]));
    END IF;

    FOREACH m IN ARRAY made LOOP   -- this session has its turn, so nothing waits
      IF m = ANY (free) THEN
        tokens[m] := fence.floor_of(p_resources[m]) + 1;
        IF (SELECT r.raised FROM fence.raise(p_resources[m], tokens[m], p_seal_hashes[m], p_holders[m]) r) THEN
          first := first || m;
        END IF;
      END IF;
    END LOOP;

    -- CASE locks the keys only if the rest holds.
    ready := ARRAY(
      SELECT x.n FROM unnest(turns) x(n) JOIN fence.resources f ON f.resource = p_resources[x.n]
       WHERE x.n = ANY (free)
         AND CASE WHEN f.token < 9223372036854775807 AND cardinality(f.undrained) <= 1
                   AND fence.key(f.resource, f.token, p_seal_hashes[x.n]) <> ALL (f.undrained || fence.key(f.resource, f.token, f.seal))
                  THEN fence.try_lock(fence.key(f.resource, f.token, f.seal), true)
                   AND (f.undrained = '{}' OR fence.try_lock(f.undrained[1], true)) END);

    UPDATE fence.resources f
       SET token = f.token + 1, seal = p_seal_hashes[x.n], holder = coalesce(p_holders[x.n], ''), armed_at = now(),
           ended_at = NULL, undrained = '{}'
      FROM unnest(ready) x(n) WHERE f.resource = p_resources[x.n];

    INSERT INTO fence.leases AS l (resource, owner, token, holder, ends_at)
    SELECT f.resource, p_owners[x.n], f.token, coalesce(p_holders[x.n], ''), clock_timestamp() + p_ttls[x.n] * interval '1 us'
      FROM unnest(first || ready) x(n) JOIN fence.resources f ON f.resource = p_resources[x.n]
    ON CONFLICT ON CONSTRAINT leases_pkey
    DO UPDATE SET owner = excluded.owner, token = excluded.token, holder = excluded.holder, ends_at = excluded.ends_at;
  END IF;

  IF first || ready = '{}' THEN   -- a crash may undo what was changed
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  RETURN QUERY
  SELECT x.n::int, x.n = ANY (first || ready), x.n <> ALL (first || ready) AND (l.ends_at > clock_timestamp() OR p_behind[x.n] AND x.n <> ALL (asked)),
         l.token, l.holder, greatest(0, 1000000 * extract(epoch FROM l.ends_at - clock_timestamp()))::bigint
    FROM unnest(p_resources) WITH ORDINALITY x(r, n) LEFT JOIN fence.leases l ON l.resource = x.r AND l.ends_at > clock_timestamp();
END $$;
REVOKE ALL ON FUNCTION fence.take_leases(text[], text[], bigint[], bytea[], text[], boolean[]) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.take_leases(text[], text[], bigint[], bytea[], text[], boolean[]) TO fence_gateway, fence_locker;

-- Takes one lease, waiting at most p_limit for its turn, then raises ZF005. A repeated call of the same owner, as after a lost
-- answer, returns the owner's lease. taken: raise and lease are committed with this transaction, and fence.drain follows.
-- Otherwise another owner holds it, `holder`, for `left_us` more, or other processes wait before the caller. p_waiter: the
-- caller's process then waits, in its place, and keeps it for p_keep; a caller that takes the lease leaves the line. p_behind as
-- in fence.take_leases; a waiter has its place.
CREATE OR REPLACE FUNCTION fence.take_lease(p_resource text, p_owner text, p_ttl bigint, p_seal_hash bytea, p_holder text, p_behind boolean,
                                p_waiter text DEFAULT NULL, p_keep interval DEFAULT '5 s',
                                p_limit interval DEFAULT '5 s', OUT taken boolean, OUT token bigint, OUT holder text, OUT left_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  l record;
  mine bigint;   -- place in the line
  held_by text;
  v fence.verdict;
  fault text := coalesce(
    'resource ' || fence.resource_fault(p_resource),
    CASE WHEN coalesce(p_owner, '') = '' THEN 'owner is missing' END,
    CASE WHEN coalesce(p_ttl, 0) <= 0 THEN 'ttl is not positive' END,
    CASE WHEN octet_length(p_seal_hash) IS DISTINCT FROM 32 THEN 'seal hash is not 32 bytes long' END,
    CASE WHEN p_waiter COLLATE "C" !~ '^[0-9a-z]{1,40}$' THEN 'waiter is not 1 to 40 digits and small letters' END,   -- a part of a channel's name
    CASE WHEN p_waiter IS NOT NULL AND (p_keep > '1 h') IS NOT FALSE THEN 'keep is more than an hour' END);
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();
  PERFORM fence.need_source();
  PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
  IF NOT FOUND AND NOT fence.take_turn(p_resource, 1000 * extract(epoch FROM p_limit)) THEN
    held_by := fence.arming_named(p_resource);
    v := fence.refusal('ZF005', format('lease of "%s" was not taken: an earlier change of its fence has not ended: %s', p_resource, held_by),
                       p_resource, NULL, NULL, NULL, NULL, held_by);
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  SELECT x.owner, x.token, x.holder, x.ends_at INTO l FROM fence.leases x WHERE x.resource = p_resource FOR UPDATE;
  taken := FOUND AND l.owner = p_owner AND l.ends_at > clock_timestamp();
  IF taken THEN
    token := l.token;
    PERFORM fence.commit_durably();
    RETURN;
  END IF;
  SELECT w.place INTO mine FROM fence.lease_waiters w WHERE w.resource = p_resource AND w.waiter = p_waiter;
  IF l.ends_at > clock_timestamp() THEN
    holder := l.holder;
    left_us := 1000000 * extract(epoch FROM l.ends_at - clock_timestamp());
  ELSIF p_behind AND EXISTS (SELECT FROM fence.lease_waiters w WHERE w.resource = p_resource AND w.until > clock_timestamp()
                                AND w.waiter IS DISTINCT FROM p_waiter AND (mine IS NULL OR w.place < mine)) THEN
    holder := '';
    left_us := 0;
  ELSE
    PERFORM fence.commit_durably();
    token := coalesce((SELECT f.token FROM fence.resources f WHERE f.resource = p_resource), fence.floor_of(p_resource)) + 1;
    taken := (SELECT r.raised FROM fence.raise(p_resource, token, p_seal_hash, p_holder, p_limit) r);
    IF NOT taken THEN
      RAISE EXCEPTION 'fence of "%" changed while its turn was held', p_resource USING ERRCODE = 'internal_error';
    END IF;
    INSERT INTO fence.leases AS x (resource, owner, token, holder, ends_at)
    VALUES (p_resource, p_owner, take_lease.token, coalesce(p_holder, ''), clock_timestamp() + p_ttl * interval '1 us')
    ON CONFLICT ON CONSTRAINT leases_pkey
    DO UPDATE SET owner = excluded.owner, token = excluded.token, holder = excluded.holder, ends_at = excluded.ends_at;
    DELETE FROM fence.lease_waiters w WHERE w.resource = p_resource AND w.waiter = p_waiter;
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);   -- a place in the line need not outlive a crash
  IF p_waiter IS NOT NULL THEN
    DELETE FROM fence.lease_waiters w WHERE w.resource = p_resource AND w.until <= clock_timestamp() AND w.waiter <> p_waiter;
    INSERT INTO fence.lease_waiters AS w (resource, waiter, place, until)
    VALUES (p_resource, p_waiter, (SELECT coalesce(max(o.place), 0) + 1 FROM fence.lease_waiters o WHERE o.resource = p_resource), clock_timestamp() + p_keep)
    ON CONFLICT ON CONSTRAINT lease_waiters_pkey DO UPDATE SET until = excluded.until;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.take_lease(text, text, bigint, bytea, text, boolean, text, interval, interval) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.take_lease(text, text, bigint, bytea, text, boolean, text, interval, interval) TO fence_gateway, fence_locker;

-- Extends leases to a new time to live, counted from now, at most 64. It extends no lease that has ended, and none whose grant
-- has ended; it shortens none. It skips a row that another session has locked, unless p_wait. Returns one row for each; n is its
-- position: extended: the lease lives for its p_ttl from now on. busy: the caller repeats it alone. Both false: the lease has
-- ended.
CREATE OR REPLACE FUNCTION fence.extend_leases(p_resources text[], p_owners text[], p_ttls bigint[], p_wait boolean DEFAULT false)
RETURNS TABLE (n integer, extended boolean, busy boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s'
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  locked int[];
  done int[] := '{}';
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM fence.need_source();
  PERFORM fence.commit_durably();
  IF p_wait THEN
    locked := ARRAY(SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n) JOIN fence.leases l ON l.resource = x.r AND l.owner = p_owners[x.n]
                     ORDER BY l.resource FOR UPDATE OF l);
  ELSE
    locked := ARRAY(SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n) JOIN fence.leases l ON l.resource = x.r AND l.owner = p_owners[x.n]
                     FOR UPDATE OF l SKIP LOCKED);
  END IF;
  -- The clock is read under the lock.
  WITH late AS (
    UPDATE fence.leases l SET ends_at = greatest(l.ends_at, clock_timestamp() + p_ttls[x.n] * interval '1 us')
      FROM unnest(locked) x(n)
     WHERE l.resource = p_resources[x.n] AND l.owner = p_owners[x.n] AND l.ends_at > clock_timestamp()
       AND EXISTS (SELECT FROM fence.resources f WHERE f.resource = l.resource AND f.token = l.token AND f.ended_at IS NULL)
    RETURNING x.n)
  SELECT coalesce(array_agg(late.n), '{}') INTO done FROM late;
  RETURN QUERY
  SELECT x.n::int, x.n = ANY (done),
         x.n <> ALL (locked) AND EXISTS (SELECT FROM fence.leases l WHERE l.resource = x.r AND l.owner = p_owners[x.n] AND l.ends_at > clock_timestamp())
    FROM unnest(p_resources) WITH ORDINALITY x(r, n);
END $$;
REVOKE ALL ON FUNCTION fence.extend_leases(text[], text[], bigint[], boolean) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.extend_leases(text[], text[], bigint[], boolean) TO fence_gateway, fence_locker;

-- Frees leases and ends their grants, at most 64, and notifies the first process that waits for each. Waits p_limit in all for
-- the turns, in the order of the names' bytes; 0 waits for none. Returns one row for each; n is its position: freed: it was the
-- owner's, and alive. busy: another session has the turn, or the row; nothing was changed. Both false: it had ended.
CREATE OR REPLACE FUNCTION fence.free_leases(p_resources text[], p_owners text[], p_limit interval DEFAULT '0')
RETURNS TABLE (n integer, freed boolean, busy boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s'
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  until timestamptz := clock_timestamp() + p_limit;
  turns int[] := '{}';   -- positions whose turn this session has. Without a row in fence.arms both columns are false
  mine int[];            -- positions whose lease is the owner's, and locked
  places tid[];          -- of their rows
  alive int[];           -- positions whose lease had not ended
  m int;
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM fence.commit_durably();
  IF p_limit = '0' THEN
    turns := ARRAY(SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n) JOIN fence.arms a ON a.resource = x.r FOR UPDATE OF a SKIP LOCKED);
  ELSE
    FOR m IN SELECT x.n FROM unnest(p_resources) WITH ORDINALITY x(r, n) JOIN fence.arms a ON a.resource = x.r ORDER BY x.r COLLATE "C", x.n LOOP
      PERFORM FROM fence.arms a WHERE a.resource = p_resources[m] FOR UPDATE SKIP LOCKED;
      IF FOUND OR clock_timestamp() < until AND fence.take_turn(p_resources[m], 1000 * extract(epoch FROM until - clock_timestamp())) THEN
        PERFORM FROM fence.leases l WHERE l.resource = p_resources[m] AND l.owner = p_owners[m] FOR UPDATE;
        turns := turns || m;
      END IF;
    END LOOP;
  END IF;

  SELECT coalesce(array_agg(x.n), '{}'), coalesce(array_agg(x.place), '{}'), coalesce(array_agg(x.n) FILTER (WHERE x.lives), '{}')
    INTO mine, places, alive
    FROM (SELECT t.n, l.ctid AS place, l.ends_at > clock_timestamp() AS lives
            FROM unnest(turns) t(n) JOIN fence.leases l ON l.resource = p_resources[t.n]
           WHERE l.owner = p_owners[t.n] FOR UPDATE OF l SKIP LOCKED) x;   -- the clock is read under the lock

  WITH freed AS (
    UPDATE fence.leases l SET owner = '', ends_at = '-infinity' FROM unnest(places) x(place) WHERE l.ctid = x.place RETURNING l.resource, l.token)
  UPDATE fence.resources f SET ended_at = now() FROM freed WHERE f.resource = freed.resource AND f.token = freed.token AND f.ended_at IS NULL;

  PERFORM fence.call_next(p_resources[x.n]) FROM unnest(mine) x(n)
    WHERE EXISTS (SELECT FROM fence.lease_waiters w WHERE w.resource = p_resources[x.n]);

  RETURN QUERY
  SELECT x.n::int, x.n = ANY (alive),
         CASE WHEN x.n = ANY (mine) THEN false
              WHEN x.n = ANY (turns) THEN EXISTS (SELECT FROM fence.leases l WHERE l.resource = x.r AND l.owner = p_owners[x.n])
              ELSE EXISTS (SELECT FROM fence.arms a WHERE a.resource = x.r) END
    FROM unnest(p_resources) WITH ORDINALITY x(r, n);
END $$;
REVOKE ALL ON FUNCTION fence.free_leases(text[], text[], interval) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.free_leases(text[], text[], interval) TO fence_gateway, fence_locker;

-- Notifies the first process that waits for a resource that it may be free; the payload is the resource. Deletes places long
-- dead.
CREATE OR REPLACE FUNCTION fence.call_next(p_resource text) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  waiting text := (SELECT w.waiter FROM fence.lease_waiters w WHERE w.resource = p_resource AND w.until > clock_timestamp() ORDER BY w.place LIMIT 1);
BEGIN
  DELETE FROM fence.lease_waiters w WHERE (w.resource, w.waiter) IN (
    SELECT d.resource, d.waiter FROM fence.lease_waiters d
     WHERE d.resource = p_resource AND d.until < clock_timestamp() - interval '1 min' FOR UPDATE SKIP LOCKED);
  IF waiting IS NOT NULL THEN
    PERFORM pg_notify('fencegate_lease_' || waiting, p_resource);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.call_next(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Ends a process's wait. If the resource is free, notifies the next process: the notification of this one is lost.
CREATE OR REPLACE FUNCTION fence.leave_line(p_resource text, p_waiter text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  DELETE FROM fence.lease_waiters w WHERE w.resource = p_resource AND w.waiter = p_waiter;
  IF FOUND AND NOT EXISTS (SELECT FROM fence.leases l WHERE l.resource = p_resource AND l.ends_at > clock_timestamp()) THEN
    PERFORM fence.call_next(p_resource);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.leave_line(text, text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.leave_line(text, text) TO fence_gateway, fence_locker;

-- Returns the holder of a resource: owner is NULL if there is none. token is the recorded one; 0: none.
CREATE OR REPLACE FUNCTION fence.lease_of(p_resource text, OUT owner text, OUT holder text, OUT token bigint, OUT left_us bigint, OUT waiters integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT l.owner, l.holder, greatest(1, 1000000 * extract(epoch FROM l.ends_at - clock_timestamp()))::bigint INTO owner, holder, left_us
    FROM fence.leases l WHERE l.resource = p_resource AND l.ends_at > clock_timestamp();
  token := coalesce((SELECT f.token FROM fence.resources f WHERE f.resource = p_resource), 0);
  waiters := (SELECT count(*) FROM fence.lease_waiters w WHERE w.resource = p_resource AND w.until > clock_timestamp());
END $$;
REVOKE ALL ON FUNCTION fence.lease_of(text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.lease_of(text) TO fence_gateway, fence_locker;

-- Returns if leases can be taken; otherwise raises the error of taking one.
CREATE OR REPLACE FUNCTION fence.leases_ready() RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.need_source();
END $$;
REVOKE ALL ON FUNCTION fence.leases_ready() FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.leases_ready() TO fence_gateway, fence_locker;
