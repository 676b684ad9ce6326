-- The check: is the presented grant the one that the fence records? It runs inside the transaction that it protects.
--
-- The rule. A writer LOCKS its grant's advisory key (shared, for as long as its write may be committed), then READS the fence,
-- in a new statement. Arming PUBLISHES the new token (commit), then locks the superseded key exclusively. So either the
-- writer sees the new token and is refused, or draining sees the writer and waits for it or ends it.
--
-- The same read refuses a grant that has ended because its lease was released. A writer that locked and read before that is
-- still in flight: ending waits for nobody.
--
-- Facts behind it, each tested:
--  * Reading before locking, or without locking, is unsafe. A STABLE function would read a snapshot from before the lock.
--  * READ COMMITTED takes a new snapshot for each statement in here, so a row read under the lock is current, whatever its xmax
--    says: a raise that has not committed yet finds the lock when it drains. REPEATABLE READ and SERIALIZABLE keep their
--    snapshot. There xmax = 0 proves that the row is the newest version; otherwise a row lock decides, which fails if it is not.
--    A raise that was rolled back leaves xmax <> 0 until the next raise.
--  * ROLLBACK TO a savepoint releases a lock taken after it, and undoes the writes made after it. So every statement checks
--    again. No setting of the client may remember "already checked".
--  * A cursor may write, then fail inside a savepoint, and its write stays. So does the lock: see locks.sql.
--  * Row locks in the hot path starve arming and double the WAL. Advisory locks touch no table.
--
-- Settings: fence.resource (percent-encoded; a value without '%' is itself) and fence.token ('34.<seal>', '0.<seal>', '34').
-- They come with the connection, with SET, or with fence.use. After SET LOCAL ends a setting reads '', not NULL.
-- No message, DETAIL or CONTEXT in here may show a seal, nor any part of a malformed token.

-- How long a writer waits for other sessions, in milliseconds, before it fails with ZF005. A session that only reports waits 1
-- ms (see fence.try_settings). Any session may set the same: then only its own writes fail sooner.
CREATE OR REPLACE FUNCTION fence.patience() RETURNS numeric LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE current_setting('fence.impatient', true) WHEN 'yes' THEN 1.0 ELSE 5000.0 END
$$;
REVOKE ALL ON FUNCTION fence.patience() FROM PUBLIC, fence_writer, fence_gateway;

-- Takes the lock that announces the first INSERT of a resource's row into fence.arms. Two INSERTs of one name wait for each
-- other, and fence.arm_group must not wait. fence.take_turn inserts without the lock, too, and may wait: any login can take any
-- advisory lock.
CREATE OR REPLACE FUNCTION fence.first_turn(p_resource text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT fence.try_lock(pg_catalog.hashtextextended(p_resource, 1717920357), true)
$$;
REVOKE ALL ON FUNCTION fence.first_turn(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Takes a resource's turn on the slow path: the resource has no row in fence.arms yet, or another session holds it. Returns
-- false if another session still holds it after p_patience milliseconds.
CREATE OR REPLACE FUNCTION fence.take_turn(p_resource text, p_patience numeric) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
BEGIN
  PERFORM set_config('lock_timeout', greatest(1, ceil(p_patience))::text, true);
  LOOP   -- the row may be retired between the INSERT and the lock
    PERFORM fence.first_turn(p_resource);   -- without the lock the INSERT waits
    INSERT INTO fence.arms (resource) VALUES (p_resource) ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
    PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE;
    EXIT WHEN FOUND;
  END LOOP;
  PERFORM set_config('lock_timeout', before, true);
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.take_turn(text, numeric) FROM PUBLIC, fence_writer, fence_gateway;

-- Raises an error unless the transaction is READ COMMITTED: raising and draining read what other sessions have just committed.
CREATE OR REPLACE FUNCTION fence.need_read_committed() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'arming needs READ COMMITTED, but this transaction is %', upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'invalid_transaction_state',
            HINT = 'Connect with default_transaction_isolation = ''read committed''.';
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.need_read_committed() FROM PUBLIC, fence_writer, fence_gateway;

-- Makes the COMMIT of the current transaction durable, whatever the session chose before: with synchronous_commit = off a crash
-- lost an acknowledged raise. A SET clause does not help: PostgreSQL undoes it before COMMIT. A session that sets it again
-- afterwards, as a writer can whose bare token has raised the fence, risks its raise and its writes together.
CREATE OR REPLACE FUNCTION fence.commit_durably() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.commit_durably() FROM PUBLIC, fence_writer, fence_gateway;

-- Names the session that holds a resource's row in fence.arms: its transaction is the row's xmax. A session that waited for its
-- turn, or inserted the row, did so in a subtransaction, whose number identifies no session; such a session is found by its lock
-- on the table for writing.
CREATE OR REPLACE FUNCTION fence.arming_named(p_resource text) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  WITH l AS MATERIALIZED (
    SELECT k.pid, k.locktype, k.mode, k.transactionid, k.virtualtransaction,
           k.relation = 'fence.arms'::regclass AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AS of_arms
      FROM pg_locks k WHERE k.granted AND k.pid IS DISTINCT FROM pg_backend_pid()
  ), holding AS (
    SELECT l.pid, l.virtualtransaction FROM l WHERE l.transactionid = (SELECT a.xmax FROM fence.arms a WHERE a.resource = p_resource)
  ), in_the_way AS (
    SELECT h.pid, h.virtualtransaction FROM holding h
    UNION
    SELECT l.pid, l.virtualtransaction FROM l WHERE l.of_arms AND l.mode = 'RowExclusiveLock' AND NOT EXISTS (SELECT FROM holding)
  )
  SELECT coalesce(string_agg(DISTINCT CASE WHEN w.pid IS NULL THEN format('prepared transaction %L', p.gid) ELSE format('process %s', w.pid) END, ', '),
                  'a transaction that has just ended')
    FROM in_the_way w
    LEFT JOIN l x ON w.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = w.virtualtransaction AND x.locktype = 'transactionid'
    LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
   WHERE w.pid IS NOT NULL OR p.gid IS NOT NULL
$$;
REVOKE ALL ON FUNCTION fence.arming_named(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns whether a name fits a pattern of fence.unsealed.
CREATE OR REPLACE FUNCTION fence.fits(p_resource text, p_pattern text) RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT p_resource LIKE   -- chr(92) is \, whatever standard_conforming_strings says
    replace(replace(replace(replace(p_pattern, chr(92), repeat(chr(92), 2)), '%', chr(92) || '%'), '_', chr(92) || '_'), '*', '%')
$$;
REVOKE ALL ON FUNCTION fence.fits(text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns whether unsealed tokens are accepted for a resource.
CREATE OR REPLACE FUNCTION fence.accepts_unsealed(p_resource text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM fence.unsealed u WHERE fence.fits(p_resource, u.pattern))
$$;
REVOKE ALL ON FUNCTION fence.accepts_unsealed(text) FROM PUBLIC, fence_writer, fence_gateway;

-- At REPEATABLE READ and SERIALIZABLE: returns whether the version in this snapshot is the newest committed one. A row lock
-- decides; serialization_failure means no. It is taken in a subtransaction that rolls back, because arming must never wait for
-- it, and with NOWAIT: a raise that has not committed yet drains after its commit, and then finds the advisory lock that the
-- caller already holds. If another session has locked the table, a lock_timeout gives the same error, which says nothing about
-- the row. So the table is locked before.
CREATE OR REPLACE FUNCTION fence.is_newest(p_resource text) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  BEGIN
    LOCK TABLE fence.resources IN ROW SHARE MODE;
  EXCEPTION WHEN SQLSTATE 'ZF000' THEN NULL;   -- never: see locks.sql
  END;
  BEGIN
    PERFORM FROM fence.resources f WHERE f.resource = p_resource FOR SHARE NOWAIT;
    RAISE EXCEPTION USING ERRCODE = 'ZF000';
  EXCEPTION
    WHEN SQLSTATE 'ZF000' OR lock_not_available THEN RETURN true;
    WHEN serialization_failure THEN RETURN false;
    WHEN read_only_sql_transaction THEN RETURN false;   -- a read-only transaction can't tell
  END;
END $$;
REVOKE ALL ON FUNCTION fence.is_newest(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Raises the fence to an unsealed token above the recorded one, in the writer's transaction. Lock order, each to the end of the
-- transaction: the turn in fence.arms; the key of every earlier grant, exclusively, so that their writers have ended and new
-- ones wait; the row. The keys are sorted, so that two sessions can't deadlock. The UPDATE is plain, because ON CONFLICT DO
-- UPDATE would leave xmax <> 0 in the new version. Returns NULL, or ZF005 if another session does not end in time.
CREATE OR REPLACE FUNCTION fence.raise_unsealed(p_resource text, p_token bigint) RETURNS fence.verdict LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  k bigint;
  below bigint;
  held_by text;
BEGIN
  PERFORM fence.commit_durably();
  BEGIN
    LOCK TABLE fence.arms IN ROW SHARE MODE;   -- fence.invalidate_all waits for it, within its limit
  EXCEPTION WHEN SQLSTATE 'ZF000' THEN NULL;   -- never: see locks.sql
  END;
  PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
  IF NOT FOUND AND NOT fence.take_turn(p_resource, fence.patience()) THEN
    held_by := fence.arming_named(p_resource);
    RETURN fence.refusal('ZF005', format('fence of "%s" was not raised to %s: an earlier raise has not ended: %s', fence.shown(p_resource), p_token, held_by),
                         p_resource, p_token, NULL, NULL, NULL, held_by);
  END IF;
  SELECT token, seal, undrained INTO f FROM fence.resources WHERE resource = p_resource;
  IF f.token >= p_token THEN
    RETURN NULL;   -- another writer raised it first; the caller checks again
  ELSIF f.token IS NULL THEN
    below := fence.floor_of_unsealed(p_resource);
    IF p_token <= below THEN
      RETURN fence.refusal_of_retired(p_resource, p_token, below);
    END IF;
    BEGIN
      INSERT INTO fence.resources (resource, token, holder, armed_at) VALUES (p_resource, p_token, session_user, now());
    EXCEPTION WHEN unique_violation THEN   -- this transaction's snapshot does not show the row
      RAISE EXCEPTION 'could not serialize access to the fence of "%"', p_resource USING ERRCODE = 'serialization_failure';
    END;
    RETURN NULL;
  END IF;
  FOR k IN SELECT DISTINCT u FROM unnest(f.undrained || fence.key(p_resource, f.token, f.seal)) u ORDER BY u LOOP
    IF NOT fence.try_lock(k, true) AND NOT fence.lock_within(k, true, fence.patience()) THEN
      held_by := fence.holders_named(k);
      RETURN fence.refusal('ZF005', format('fence of "%s" was not raised to %s: an older writer has not ended: %s', p_resource, p_token, held_by),
                           p_resource, p_token, f.token, NULL, NULL, held_by);
    END IF;
  END LOOP;
  UPDATE fence.resources SET token = p_token, seal = NULL, holder = session_user, armed_at = now(), ended_at = NULL, undrained = '{}'
   WHERE resource = p_resource AND token < p_token;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.raise_unsealed(text, bigint) FROM PUBLIC, fence_writer, fence_gateway;

-- Decides on a resource and a token that are well-formed. p_kind: 'sealed' (p_seal_hash is given; token 0 means "the token that
-- this seal was issued with"), 'unsealed', or 'issued' (the caller authenticated the token by other means). The verdict is the
-- recorded token, ZF001, ZF003 or ZF005. Creates a row only for unsealed tokens, where they are accepted.
CREATE OR REPLACE FUNCTION fence.verify(p_resource text, p_token bigint, p_seal_hash bytea, p_kind text) RETURNS fence.verdict
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  held bigint;
  wanted bigint;
  waited numeric := 0;
  v fence.verdict;
  stale boolean := false;
  open boolean := p_kind = 'unsealed' AND fence.accepts_unsealed(p_resource);
  snapshot boolean := current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted');
  never CONSTANT text := 'fencing token %s was never issued for "%s" with the presented seal';
  advice text := CASE WHEN snapshot THEN
    'If it was issued after this transaction began, begin a new transaction: this one cannot see what the last holder wrote.' END;
BEGIN
  LOOP
    SELECT token, seal, ended_at, xmax = '0'::xid AS untouched INTO f FROM fence.resources WHERE resource = p_resource;

    IF open AND (f.token IS NULL OR f.token < p_token) THEN
      -- A role that may not call fence.use may not raise through a guarded table either. Tokens stay below 2^53 here, so that
      -- every resource has a next one.
      IF p_token >= 9007199254740992 OR NOT pg_has_role(session_user, 'fence_writer', 'MEMBER') THEN
        RETURN fence.refusal('ZF003', format(never, p_token, fence.shown(p_resource)), p_resource, p_token, f.token, NULL,
                             'Unsealed tokens raise a fence up to 9007199254740991, and for logins that are fence_writer.');
      END IF;
      open := fence.keep_unsealed(p_resource, p_token);   -- a pattern may just have been removed
      IF open THEN
        v := fence.raise_unsealed(p_resource, p_token);
      END IF;
      IF v.state IS NOT NULL THEN
        RETURN v;
      END IF;
      CONTINUE;
    ELSIF f.token IS NULL AND p_token BETWEEN 1 AND fence.floor_of(p_resource) THEN
      RETURN fence.refusal_of_retired(p_resource, p_token, fence.floor_of(p_resource));
    ELSIF f.token IS NULL OR p_token > f.token THEN
      RETURN fence.refusal('ZF003', format(never, p_token, fence.shown(p_resource)), p_resource, p_token, f.token, NULL, advice);
    ELSIF p_token < f.token AND (p_token > 0 OR f.seal IS DISTINCT FROM p_seal_hash) THEN
      -- A seal without its token that is not the recorded one is treated as superseded.
      RETURN fence.refusal('ZF001', format('stale fencing token%s for "%s": the fence stands at %s',
                             CASE WHEN p_token > 0 THEN ' ' || p_token ELSE ', presented by its seal alone,' END, p_resource, f.token),
                           p_resource, p_token, f.token);
    ELSIF p_kind = 'sealed' AND f.seal IS DISTINCT FROM p_seal_hash
       OR p_kind = 'unsealed' AND (f.seal IS NOT NULL OR NOT open) THEN
      RETURN fence.refusal('ZF003', format(never, p_token, fence.shown(p_resource)), p_resource, p_token, f.token, NULL, advice);
    ELSIF f.ended_at IS NOT NULL THEN   -- permanently: this grant is never current again
      RETURN fence.refusal_of_ended(p_resource, f.token);
    END IF;

    -- The grant looks current. It is current if the same row is read while the grant's key is held. A session that holds the key
    -- exclusively is about to supersede the grant, or is unrelated. So the loop reads again from time to time, up to a limit.
    wanted := fence.key(p_resource, f.token, f.seal);
    EXIT WHEN held = wanted;
    IF fence.try_lock(wanted, false) OR fence.lock_within(wanted, false, 100) THEN
      held := wanted;
      CONTINUE;
    END IF;
    waited := waited + 100;
    stale := snapshot AND NOT fence.is_newest(p_resource);
    EXIT WHEN stale;
    IF waited >= fence.patience() THEN
      RETURN fence.refusal('ZF005', format('the lock of grant %s of "%s" is held by %s, which is no writer', f.token, p_resource, fence.holders_named(wanted)),
                           p_resource, p_token, f.token, NULL, NULL, fence.holders_named(wanted));
    END IF;
  END LOOP;

  IF stale OR snapshot AND NOT f.untouched AND NOT fence.is_newest(p_resource) THEN
    RETURN fence.refusal('ZF001', format('stale fencing token %s for "%s": the fence was raised, or the lease released, after this transaction''s snapshot',
                                         coalesce(nullif(p_token, 0), f.token), p_resource), p_resource, p_token, NULL, NULL,
      CASE WHEN current_setting('transaction_read_only')::boolean THEN
        'If that was rolled back, a read-only transaction can tell at READ COMMITTED only.' END);
  END IF;
  RETURN ROW(f.token, NULL, NULL, NULL, NULL)::fence.verdict;
END $$;
REVOKE ALL ON FUNCTION fence.verify(text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway;

-- The common case of the check in two steps, for one sealed grant: r is its resource as presented, or its plain name if `plain`,
-- and g its token. Returns the recorded token, or NULL: then verify_settings decides. This is the hot path, so names are
-- qualified; a SET clause costs time.
CREATE OR REPLACE FUNCTION fence.fast_check(r text, g text, plain boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  h pg_catalog.bytea := pg_catalog.sha256(pg_catalog.convert_to(
    pg_catalog.substr(g, pg_catalog.strpos(g, '.') OPERATOR(pg_catalog.+) 1), 'UTF8'));
  recorded pg_catalog.int8;
  locked pg_catalog.bool := false;
BEGIN
  -- 1. Lock: fence.try_lock of fence.key, both written out. Only a try: the slow path waits for a drain under way.
  IF plain OR pg_catalog.strpos(r, '%') OPERATOR(pg_catalog.=) 0 THEN
    BEGIN
      locked := pg_catalog.pg_try_advisory_xact_lock_shared(
        pg_catalog.hashtextextended(pg_catalog.encode(h, 'hex'), pg_catalog.hashtextextended(r, 0)));
    EXCEPTION WHEN SQLSTATE 'ZF000' THEN NULL;   -- never, as in fence.try_lock
    END;
  END IF;
  IF locked THEN
    -- 2. Read, in a new statement, which at READ COMMITTED (and READ UNCOMMITTED) has a new snapshot.
    SELECT f.token INTO recorded FROM fence.resources f
     WHERE f.resource OPERATOR(pg_catalog.=) r AND f.seal OPERATOR(pg_catalog.=) h
       AND (pg_catalog.split_part(g, '.', 1) OPERATOR(pg_catalog.=) f.token::pg_catalog.text
            OR pg_catalog.split_part(g, '.', 1) OPERATOR(pg_catalog.=) '0')
       AND f.ended_at IS NULL
       AND (f.xmax OPERATOR(pg_catalog.=) '0'::pg_catalog.xid
            OR pg_catalog.starts_with(pg_catalog.current_setting('transaction_isolation'), 'read '));
  END IF;
  RETURN recorded;
END $$;
REVOKE ALL ON FUNCTION fence.fast_check(text, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns whether this session is a logical replication worker at its own work, and not a subscriber's trigger that it fires. No
-- client can be one.
CREATE OR REPLACE FUNCTION fence.replicates() RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT pg_trigger_depth() = 1 AND EXISTS (SELECT FROM pg_stat_get_subscription(NULL) s WHERE s.pid = pg_backend_pid())
$$;
REVOKE ALL ON FUNCTION fence.replicates() FROM PUBLIC, fence_writer, fence_gateway;

-- Returns whether a statement comes from such a worker and a publisher's fence has judged it: the initial copy of a table, or
-- TRUNCATE of a table of its subscription or of a descendant. Applied rows fire no statement trigger, so any other statement
-- there is the subscriber's own, such as one of a function in a column's default.
CREATE OR REPLACE FUNCTION fence.replicates(p_relation oid, p_operation text) RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT pg_trigger_depth() = 1 AND EXISTS (
    SELECT FROM pg_stat_get_subscription(NULL) s JOIN pg_subscription_rel r ON r.srsubid = s.subid
     WHERE s.pid = pg_backend_pid()
       AND CASE p_operation WHEN 'INSERT' THEN r.srrelid = p_relation AND s.relid = p_relation
                            WHEN 'TRUNCATE' THEN r.srrelid = p_relation OR r.srrelid IN (SELECT fence.ancestors(p_relation)) END)
$$;
REVOKE ALL ON FUNCTION fence.replicates(oid, text) FROM PUBLIC, fence_writer, fence_gateway;

-- A refusal's text. Names the table if no grant was presented: the writer may not know which of its statements is meant.
CREATE OR REPLACE FUNCTION fence.told_of(v fence.verdict, p_relation oid) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE v.state WHEN 'ZF002' THEN concat('write to ', p_relation::regclass, substr(v.message, length('write '))) ELSE v.message END
$$;
REVOKE ALL ON FUNCTION fence.told_of(fence.verdict, oid) FROM PUBLIC, fence_writer, fence_gateway;

-- The guard of a table, see fence.protect: a statement trigger with the arguments (resource) or ('', prefix).
CREATE OR REPLACE FUNCTION fence.guard() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  r pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  needed pg_catalog.text;
  v fence.verdict;
BEGIN
  -- IS TRUE: a constant resource has no tg_argv[1], and NULL AND would continue below.
  -- A list may hold more grants that fit, of which each must be current.
  IF (tg_argv[0] OPERATOR(pg_catalog.=) r OR pg_catalog.starts_with(r, tg_argv[1])) IS TRUE
     AND coalesce(pg_catalog.current_setting('fence.grants', true), '') OPERATOR(pg_catalog.=) ''
     AND fence.fast_check(r, pg_catalog.current_setting('fence.token', true)) IS NOT NULL THEN
    RETURN NULL;
  END IF;
  needed := CASE WHEN tg_argv[0] OPERATOR(pg_catalog.=) '' THEN tg_argv[1] OPERATOR(pg_catalog.||) '*' ELSE tg_argv[0] END;
  IF fence.fast_settings(needed) IS NOT NULL THEN
    RETURN NULL;
  END IF;
  v := fence.verify_slowly(needed);
  IF v.state IS NULL OR v.state OPERATOR(pg_catalog.=) 'ZF002' AND fence.replicates(tg_relid, tg_op) THEN
    RETURN NULL;
  END IF;
  PERFORM fence.count_refusal(v, tg_relid);
  RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = fence.told_of(v, tg_relid), DETAIL = fence.detail_of(v, tg_relid, tg_op), HINT = v.hint,
    SCHEMA = tg_table_schema, TABLE = tg_table_name;
END $$;
REVOKE ALL ON FUNCTION fence.guard() FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.guard() TO fence_protector;
