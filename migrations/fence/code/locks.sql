-- Advisory locks, to the end of the transaction that may commit what was done under them.
--
-- PostgreSQL says that pg_advisory_xact_lock locks to the end of the transaction. But the lock belongs to the portal that runs
-- the statement, which passes it on when it ends well. A portal that fails inside a savepoint releases its locks, and keeps what
-- it wrote before that savepoint: a cursor whose first FETCH writes and whose second one fails, or INSERT RETURNING that is read
-- by Execute with a row limit. So every lock is taken in a block with EXCEPTION: its subtransaction hands the lock to the
-- (sub)transaction around it, the one that the write belongs to. The block takes no transaction id.
--
-- LOCK TABLE is wrapped likewise. A statement's own table locks can't be: they go with a failed portal.

-- The advisory lock of one grant: shared for writers that passed the check under it, exclusive for the session that drains them.
-- The key is per seal hash, because a writer may know its seal before its token. For unsealed grants it is per token.
CREATE OR REPLACE FUNCTION fence.key(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT pg_catalog.hashtextextended(
    coalesce(pg_catalog.encode(p_seal_hash, 'hex'), p_token::pg_catalog.text),
    pg_catalog.hashtextextended(p_resource, 0))
$$;
REVOKE ALL ON FUNCTION fence.key(text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;

-- Takes an advisory lock if it is free, and keeps it to the end of the (sub)transaction; see the top. It is called from hot
-- paths, so names are qualified.
CREATE OR REPLACE FUNCTION fence.try_lock(p_key bigint, p_exclusive boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_exclusive THEN
    RETURN pg_catalog.pg_try_advisory_xact_lock(p_key);
  END IF;
  RETURN pg_catalog.pg_try_advisory_xact_lock_shared(p_key);
EXCEPTION WHEN SQLSTATE 'ZF000' THEN   -- never: the clause makes the subtransaction
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.try_lock(bigint, boolean) FROM PUBLIC, fence_writer, fence_gateway;

-- Takes an advisory lock exclusively, as fence.try_lock does, but waits for as long as the session's lock_timeout allows.
CREATE OR REPLACE FUNCTION fence.lock(p_key bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM pg_catalog.pg_advisory_xact_lock(p_key);
EXCEPTION WHEN SQLSTATE 'ZF000' THEN   -- never, as in fence.try_lock
  NULL;
END $$;
REVOKE ALL ON FUNCTION fence.lock(bigint) FROM PUBLIC, fence_writer, fence_gateway;

-- Takes an advisory lock, as fence.try_lock does, or gives up after p_patience milliseconds. Any login can take any advisory
-- lock, so no session waits for one without a limit.
CREATE OR REPLACE FUNCTION fence.lock_within(p_key bigint, p_exclusive boolean, p_patience numeric) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
BEGIN
  PERFORM set_config('lock_timeout', greatest(1, ceil(p_patience))::text, true);
  IF p_exclusive THEN
    PERFORM pg_advisory_xact_lock(p_key);
  ELSE
    PERFORM pg_advisory_xact_lock_shared(p_key);
  END IF;
  PERFORM set_config('lock_timeout', before, true);
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.lock_within(bigint, boolean, numeric) FROM PUBLIC, fence_writer, fence_gateway;

-- The holders of a grant's advisory lock, this session among them. writer: the lock is shared, as for a writer that passed the
-- check. A prepared transaction has a gid and no pid. It is found by the lock on its own xid; its virtual xid is that of the
-- session that prepared it, or -1/xid after a restart.
CREATE OR REPLACE FUNCTION fence.holders(p_key bigint) RETURNS TABLE (pid int, gid text, writer boolean) LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT l.pid, (SELECT p.gid FROM pg_locks x JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
                  WHERE l.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
                    AND x.locktype = 'transactionid' LIMIT 1), l.mode = 'ShareLock'
    FROM pg_locks l
   WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
     AND l.classid = ((p_key >> 32) & 4294967295)::oid AND l.objid = (p_key & 4294967295)::oid
$$;
REVOKE ALL ON FUNCTION fence.holders(bigint) FROM PUBLIC, fence_writer, fence_gateway;

-- Names the other holders of one grant's lock for people. For a moment after COMMIT PREPARED or ROLLBACK PREPARED pg_locks shows
-- locks of a transaction that pg_prepared_xacts no longer lists. Those are left out.
CREATE OR REPLACE FUNCTION fence.holders_named(p_key bigint) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(string_agg(CASE WHEN pid IS NULL THEN format('prepared transaction %L', gid) ELSE format('process %s', pid) END, ', '),
                  'a transaction that has just ended') FROM fence.holders(p_key)
   WHERE (pid IS NOT NULL OR gid IS NOT NULL) AND pid IS DISTINCT FROM pg_backend_pid()
$$;
REVOKE ALL ON FUNCTION fence.holders_named(bigint) FROM PUBLIC, fence_writer, fence_gateway;
