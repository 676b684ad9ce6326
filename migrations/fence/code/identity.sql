-- When PostgreSQL loses commits: after the promotion of a lagging standby, or the restore of a backup, fences may have fallen,
-- and superseded grants look current again.
--
--   SELECT * FROM fence.identity();                -- which server, timeline and schema this is; a gateway remembers it
--   SELECT * FROM fence.invalidate_all();          -- a transaction of its own, committed
--   SELECT * FROM fence.drain_invalidated();       -- another one, after that COMMIT
--
-- The number of a lost fence can't be recovered. So every fence is raised by a step larger than any possible loss, to a seal
-- that nobody knows. A grant from before is then lower and refused as stale, or higher (its raise was lost) and refused as never
-- issued. A lock counter that is lower learns the token from the next raise ("recorded is R") and continues above it.

-- Counts a beat. The gateway calls it after it has found the identity unchanged, before it stores the number outside.
CREATE OR REPLACE FUNCTION fence.beat() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  counted bigint;
BEGIN
  PERFORM fence.commit_durably();
  UPDATE fence.beats SET beats = beats.beats + 1 RETURNING beats.beats INTO STRICT counted;
  RETURN counted;
END $$;
REVOKE ALL ON FUNCTION fence.beat() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.beat() TO fence_gateway;

-- Returns which history this is, and how far it has come. identity: '<system identifier>/<timeline>/<oid of fence.resources>'. A
-- promotion or a point-in-time recovery changes the timeline, pg_upgrade and a new cluster the system identifier, a restored
-- dump the oid. If the server was reset to an older copy of itself, all three stay, but `beats` falls; `written` falls too,
-- until the server has written as much again. `written` is what the server has flushed, so no crash lowers it. On a standby it
-- is what was replayed, and the timeline is the last checkpoint's.
-- invalidations: the number done under this very identity.
CREATE OR REPLACE FUNCTION fence.identity(OUT identity text, OUT written pg_lsn, OUT beats bigint, OUT invalidations text[]) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  system text := '';
  timeline bigint;
BEGIN
  IF pg_is_in_recovery() THEN
    timeline := (SELECT c.timeline_id FROM pg_control_checkpoint() c);
    written := pg_last_wal_replay_lsn();
  ELSE
    -- For a while after a promotion the control file still names the old timeline; the name of the current WAL file does not.
    timeline := ('x' || lpad(left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 16, '0'))::bit(64)::bigint;
    written := pg_current_wal_flush_lsn();
  END IF;
  BEGIN
    system := (pg_control_system()).system_identifier;   -- an expression: half of what a query costs
  EXCEPTION WHEN insufficient_privilege THEN
    NULL;   -- some managed services don't reveal it; timeline and oid remain
  END;
  identity := format('%s/%s/%s', system, timeline, 'fence.resources'::regclass::oid);
  beats := (SELECT b.beats FROM fence.beats b);
  invalidations := ARRAY(SELECT i.id::text FROM fence.invalidations i WHERE i.identity = identity.identity ORDER BY i.at);
END $$;
REVOKE ALL ON FUNCTION fence.identity() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.identity() TO fence_writer, fence_gateway;

-- Raises every fence, so that every earlier grant is refused, those of lost acquisitions included. Runs once for each identity:
-- a second call changes nothing, unless p_again says that the server was reset under the same identity. A resource whose last
-- grant was unsealed is raised by one only, because an external minter could never pass a large step. `unsealed` counts those:
-- the minter must go above every token that it may have issued. Waits at most p_limit for raises under way, then raises ZF005.
-- For the schema's owner, not for gateways: it ends every lease.
CREATE OR REPLACE FUNCTION fence.invalidate_all(p_again boolean DEFAULT false, p_limit interval DEFAULT '5 s',
                                     OUT id uuid, OUT identity text, OUT raised bigint, OUT unsealed bigint, OUT already boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
  highest bigint;
  held_by text;
  v fence.verdict;
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM fence.commit_durably();
  -- A session that changes a fence has locked a row of this table first.
  BEGIN
    PERFORM set_config('lock_timeout', greatest(1, ceil(1000 * extract(epoch FROM p_limit)))::text, true);
    LOCK TABLE fence.arms IN EXCLUSIVE MODE;
  EXCEPTION WHEN lock_not_available THEN
    SELECT string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN format('prepared transaction %L', p.gid) ELSE format('process %s', l.pid) END, ', ')
      INTO held_by
      FROM pg_locks l LEFT JOIN pg_locks x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
      LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
     WHERE l.relation = 'fence.arms'::regclass AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid();
    v := fence.refusal('ZF005', format('no fence was raised: an earlier raise has not ended: %s', coalesce(held_by, 'a transaction that has just ended')),
                       NULL, NULL, NULL, NULL, NULL, held_by);
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END;

  identity := (SELECT i.identity FROM fence.identity() i);
  SELECT i.id, i.raised, i.unsealed INTO id, raised, unsealed
    FROM fence.invalidations i WHERE i.identity = invalidate_all.identity ORDER BY i.at DESC LIMIT 1;
  already := FOUND AND NOT p_again;
  IF already THEN
    PERFORM set_config('lock_timeout', before, true);
    RETURN;
  END IF;

  -- 2^32 is the size of one epoch of the lock's counters. Tokens that fencegate issues stay below 2^53. A larger token of an
  -- external minter is raised by less; at the end of the numbers only the seal changes.
  unsealed := (SELECT count(*) FROM fence.resources r WHERE r.seal IS NULL);
  UPDATE fence.resources r
     SET token = r.token + CASE WHEN r.seal IS NULL THEN least(1, 9223372036854775807 - r.token)
                                WHEN r.token < 4503599627370496 THEN 4294967296
                                ELSE least(1048576, 9223372036854775807 - r.token) END,
         seal = sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
         holder = 'invalidated by ' || session_user, armed_at = now(), ended_at = now(),
         undrained = r.undrained || fence.key(r.resource, r.token, r.seal);
  GET DIAGNOSTICS raised = ROW_COUNT;
  PERFORM set_config('lock_timeout', before, true);   -- a raise by a cursor that failed has lost its table's lock, not its row's

  UPDATE fence.floors o SET floor = o.floor + CASE WHEN o.floor < 4503599627370496 THEN 4294967296 ELSE 1048576 END;

  -- The epoch may have fallen too. A lock node that is readmitted later starts above every fence, except those over 1024 epochs
  -- ahead. A lost history has not allocated so many, since each is an admission of a node. Such a fence began with a bare token
  -- that a writer made up, whether or not a lease, a revocation or an earlier call has sealed it since: one near 2^53 would leave
  -- no epoch, and no node could be admitted any more. Tokens that are made up just below the bound use up the 2^21 epochs in
  -- 2048 calls.
  SELECT max(x.token >> 32) INTO highest FROM (SELECT r.token FROM fence.resources r UNION ALL SELECT o.floor FROM fence.floors o) x
   WHERE x.token >> 32 <= (SELECT e.epoch + 1024 FROM fence.epochs e);
  UPDATE fence.epochs SET epoch = least(greatest(epoch, highest) + 1, 2097151);

  PERFORM fence.end_leases();
  INSERT INTO fence.invalidations (identity, raised, unsealed) VALUES (invalidate_all.identity, invalidate_all.raised, invalidate_all.unsealed)
  RETURNING invalidations.id INTO id;
END $$;
REVOKE ALL ON FUNCTION fence.invalidate_all(boolean, interval) FROM PUBLIC, fence_writer, fence_gateway;

-- Waits for the writers that passed the check before invalidate_all was committed, and ends those that take longer than p_grace,
-- as fence.drain does for one resource. Returns the resources that it could not drain within p_limit each, and their holders. A
-- repeated call continues.
CREATE OR REPLACE FUNCTION fence.drain_invalidated(p_grace interval DEFAULT '200 ms', p_limit interval DEFAULT '5 s')
RETURNS TABLE (resource text, held_by text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  detail text;
BEGIN
  PERFORM fence.need_read_committed();
  FOR f IN
    SELECT DISTINCT r.resource, r.token, r.seal
      FROM pg_locks l, fence.resources r
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ShareLock' AND l.granted
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND ((l.classid::bigint << 32) | l.objid::bigint) = ANY (r.undrained)
  LOOP
    BEGIN
      PERFORM fence.drain(f.resource, f.token, f.seal, p_grace, p_limit);
    EXCEPTION WHEN SQLSTATE 'ZF005' THEN
      GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
      resource := f.resource;
      held_by := coalesce(detail::json ->> 'held_by', sqlerrm);
      RETURN NEXT;
    END;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.drain_invalidated(interval, interval) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the position that a standby must have replayed before a holder reads there; before that it would compute from data
-- that lacks the last holder's writes. The caller asks the primary after arming: every write of older holders has ended by then,
-- and lies before the position. The position is the end of inserted WAL, not of flushed WAL: an older holder's COMMIT may be
-- asynchronous. At the start of a page that includes the page header, which a standby that has replayed everything does not
-- count. So the header is left out.
CREATE OR REPLACE FUNCTION fence.position() RETURNS pg_lsn LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p pg_lsn := pg_current_wal_insert_lsn();
  in_page int := (p - '0/0') % current_setting('wal_block_size')::int;
  in_segment numeric := (p - '0/0') % pg_size_bytes(current_setting('wal_segment_size'));
BEGIN
  RETURN CASE WHEN in_page = 24 OR in_segment = 40 THEN p - in_page::numeric ELSE p END;
END $$;
REVOKE ALL ON FUNCTION fence.position() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.position() TO PUBLIC;

-- On a standby: returns once everything up to p_position is replayed, or raises 57014 after p_patience. The caller CALLs it
-- outside a transaction block, and reads in a transaction that begins afterwards. It ends its own transaction between two looks,
-- because a snapshot that is kept can delay the very replay that it waits for. On a server that is no standby it returns at
-- once, unless that server's own history is too short: a standby that was promoted too early.
CREATE OR REPLACE PROCEDURE fence.wait_for(p_position pg_lsn, p_patience interval DEFAULT '5 s') LANGUAGE plpgsql AS $$
DECLARE
  waited pg_catalog.float8 := 0;
  patience pg_catalog.float8 := extract(epoch FROM p_patience);
BEGIN
  LOOP
    IF NOT pg_catalog.pg_is_in_recovery() THEN
      IF pg_catalog.pg_current_wal_insert_lsn() OPERATOR(pg_catalog.<) p_position THEN
        RAISE EXCEPTION 'this server was promoted before it had replayed %', p_position USING ERRCODE = 'object_not_in_prerequisite_state',
          HINT = 'Its fences may be old: fencegate fence invalidate-all';
      END IF;
      RETURN;
    END IF;
    IF pg_catalog.pg_last_wal_replay_lsn() OPERATOR(pg_catalog.>=) p_position THEN
      RETURN;
    ELSIF waited OPERATOR(pg_catalog.>=) patience THEN
      RAISE EXCEPTION 'the standby has replayed up to % in %, not up to %', pg_catalog.pg_last_wal_replay_lsn(), p_patience, p_position
        USING ERRCODE = 'query_canceled', HINT = 'Read from the primary, or wait longer.';
    END IF;
    COMMIT;
    PERFORM pg_catalog.pg_sleep(0.01);
    waited := waited OPERATOR(pg_catalog.+) 0.01;
  END LOOP;
END $$;
REVOKE ALL ON PROCEDURE fence.wait_for(pg_lsn, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON PROCEDURE fence.wait_for(pg_lsn, interval) TO PUBLIC;
