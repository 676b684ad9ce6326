-- Retiring: deletes the row of a fence that nobody has used for long. Every stale token of it is still refused, for ever.
--
--   SELECT * FROM fence.retire('30 days');                     -- a transaction of its own; NULL in `last`: all were looked at
--   SELECT * FROM fence.retire('30 days', 'orders/1999');      -- continues behind the `last` of the call before
--
-- A floor remains: for each of 4096 buckets of names the greatest token that a retired fence stood at. The floor of its bucket
-- is the fence of a resource without a row: no raise goes to a token up to it, and a check refuses such a token as stale. A
-- locker that takes tokens from counters learns of the floor as of a recorded token, and continues above it.
--
-- Why no stale write passes:
--  * Only grants that have ended are retired. So their holders are refused already, and a new raise brings a new token.
--  * Writers that passed the check under one of its grants have ended: their keys are locked exclusively, or the fence is left
--    alone. A writer that locks a key later reads the fence after this COMMIT: no row, or a higher token.
--  * A raise has the resource's turn, its row in fence.arms, when it reads the floor; retiring has it until its COMMIT. That row
--    is deleted too: a raise that has waited for it finds none, inserts one, and then reads the floor (fence.take_turn).
--  * At REPEATABLE READ a deleted row is still visible; its xmax is not 0, and fence.is_newest fails on it.
-- docs/model/retire.pml removes each of these in turn, and shows what breaks.
--
-- An external minter can't go above a floor. So fences whose names take unsealed tokens stay, as do unsealed ones. A token of
-- 2^52 and above would leave little room to all names of its floor, so its fence stays, too. A crash that loses the COMMIT
-- restores row and floor together, so it need not be durable.

-- The floors that a source of leases may read, to begin above them.
CREATE OR REPLACE VIEW fence.retired AS
  SELECT f.bucket, f.floor FROM fence.floors f;
REVOKE ALL ON fence.retired FROM PUBLIC, fence_writer, fence_gateway;
GRANT SELECT ON fence.retired TO fence_gateway;

-- Returns the bucket of a name. SHA-256, because it is the same in every version of PostgreSQL and every encoding.
CREATE OR REPLACE FUNCTION fence.bucket_of(p_resource text) RETURNS int LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT get_byte(h, 0) * 16 + get_byte(h, 1) / 16 FROM sha256(convert_to(p_resource, 'UTF8')) h
$$;
REVOKE ALL ON FUNCTION fence.bucket_of(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the floor that a resource without a row has as its fence; 0: no token was recorded there. The caller has the
-- resource's turn.
CREATE OR REPLACE FUNCTION fence.floor_of(p_resource text) RETURNS bigint LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT f.floor FROM fence.floors f WHERE f.bucket = fence.bucket_of(p_resource)), 0)
$$;
REVOKE ALL ON FUNCTION fence.floor_of(text) FROM PUBLIC, fence_writer, fence_gateway;

-- The same for a token of an external minter.
CREATE OR REPLACE FUNCTION fence.floor_of_unsealed(p_resource text) RETURNS bigint LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT max(u.floor) FROM fence.unsealed u WHERE fence.fits(p_resource, u.pattern)), fence.floor_of(p_resource))
$$;
REVOKE ALL ON FUNCTION fence.floor_of_unsealed(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the floor of a new pattern in fence.unsealed.
CREATE OR REPLACE FUNCTION fence.highest_floor() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(max(f.floor), 0) FROM fence.floors f
$$;
REVOKE ALL ON FUNCTION fence.highest_floor() FROM PUBLIC, fence_writer, fence_gateway;

-- Retires fences that ended more than p_unused ago. Looks at the next p_limit fences behind p_after, in the order of the names'
-- bytes, or at as many as 4 ms suffice for, but at least one. Waits for no writer and no arm: fences in use are left alone.
-- Returns in `last` the last one that it looked at, NULL after the end. Also deletes dead places of clients that waited for a
-- lease. `unended` names fences that were armed more than p_unused ago and whose grant was never ended: acquiring and releasing
-- their lease ends it, if nobody holds it.
CREATE OR REPLACE FUNCTION fence.retire(p_unused interval, p_after text DEFAULT '', p_limit integer DEFAULT 200,
                             OUT last text, OUT retired int, OUT unended text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before timestamptz := now() - p_unused;
  patience text := current_setting('lock_timeout');
  names text[] := '{}';
  tokens bigint[] := '{}';
  looked int := 0;
  began timestamptz;
  cut boolean := false;
  c record;
  f record;
  fault text := CASE
    WHEN p_unused IS NULL OR p_unused < '0' THEN 'unused is not a length of time'
    WHEN p_after IS NULL THEN 'after is missing'
    WHEN p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 1000 THEN 'limit is not between 1 and 1000'
  END;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();
  PERFORM set_config('synchronous_commit', 'off', true);
  -- One session retires at a time, so that two can't deadlock on each other's floors. A session that allows unsealed tokens
  -- comes before, or reads the floors after. Lock order: fence.arms first, as in fence.invalidate_all. It waits a second for
  -- sessions that keep unsealed tokens locked; the next call continues.
  PERFORM set_config('lock_timeout', '1s', true);
  BEGIN
    LOCK TABLE fence.arms IN ROW SHARE MODE;
    LOCK TABLE fence.floors IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE fence.unsealed IN SHARE MODE;
  EXCEPTION WHEN SQLSTATE 'ZF000' THEN NULL;   -- never: see locks.sql
  END;
  PERFORM set_config('lock_timeout', patience, true);
  unended := '{}';
  began := clock_timestamp();
  FOR c IN SELECT r.resource, r.token, r.seal IS NOT NULL AS sealed, r.armed_at, r.ended_at FROM fence.resources r
            WHERE r.resource > p_after ORDER BY r.resource LIMIT p_limit LOOP
    -- An arm of a name that is being retired waits for the COMMIT, so a slow machine looks at fewer names.
    cut := looked > 0 AND clock_timestamp() >= began + interval '4 ms';
    EXIT WHEN cut;
    last := c.resource;
    looked := looked + 1;
    CONTINUE WHEN NOT c.sealed OR c.token >= 4503599627370496 OR coalesce(c.ended_at, c.armed_at) >= before OR fence.accepts_unsealed(c.resource);
    IF c.ended_at IS NULL THEN
      unended := unended || c.resource;
      CONTINUE;
    END IF;
    PERFORM FROM fence.arms a WHERE a.resource = c.resource FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    -- Read again, now with the turn.
    SELECT r.token, r.seal, r.undrained, r.ended_at INTO f FROM fence.resources r WHERE r.resource = c.resource;
    CONTINUE WHEN f.ended_at IS NULL OR f.ended_at >= before OR f.token <> c.token;
    CONTINUE WHEN EXISTS (SELECT FROM fence.leases l WHERE l.resource = c.resource AND l.ends_at > clock_timestamp());
    CONTINUE WHEN EXISTS (SELECT FROM unnest(f.undrained || fence.key(c.resource, f.token, f.seal)) k WHERE NOT fence.try_lock(k, true));
    DELETE FROM fence.resources r WHERE r.resource = c.resource;
    DELETE FROM fence.leases l WHERE l.resource = c.resource;
    DELETE FROM fence.arms a WHERE a.resource = c.resource;
    names := names || c.resource;
    tokens := tokens || f.token;
  END LOOP;
  INSERT INTO fence.floors AS o (bucket, floor)
  SELECT fence.bucket_of(x.r), max(x.token) FROM unnest(names, tokens) x(r, token) GROUP BY 1
  ON CONFLICT (bucket) DO UPDATE SET floor = excluded.floor WHERE o.floor < excluded.floor;
  retired := cardinality(names);
  DELETE FROM fence.lease_waiters w WHERE (w.resource, w.waiter) IN (
    SELECT d.resource, d.waiter FROM fence.lease_waiters d WHERE d.until < clock_timestamp() - interval '1 min' LIMIT p_limit FOR UPDATE SKIP LOCKED);
  IF looked < p_limit AND NOT cut THEN
    last := NULL;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.retire(interval, text, integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.retire(interval, text, integer) TO fence_gateway;
