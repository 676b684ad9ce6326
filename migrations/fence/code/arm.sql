-- Arming: raise, then drain. For the gateway only.
--
--   SELECT * FROM fence.raise('orders/1001', 35, <seal hash>, 'worker-b');   -- a transaction of its own, committed
--   SELECT * FROM fence.drain('orders/1001', 35, <seal hash>);               -- another one, after that COMMIT
--
-- The acquisition is complete when both have succeeded. If the gateway dies in between, the superseded grant's key stays in
-- `undrained`, for the next arm.
--
-- Only the next raise clears `undrained`, never drain. An UPDATE after the raise would make every REPEATABLE READ transaction of
-- the NEW holder that began in between look stale, and would double what arming writes. A row lock would leave xmax <> 0 and
-- send checks at REPEATABLE READ down the slow path. The cost is a few free keys, tried once more.
--
-- In one transaction, if no writer is in flight:
--
--   SELECT fence.arm('orders/1001', 35, <seal hash>, 'worker-b');   -- a transaction of its own, committed; false: raise and drain
--
-- Before the row is changed, fence.arm locks the superseded grants' keys exclusively, if they are free, and keeps them until the
-- COMMIT is through. So every writer that passed the check under those grants has ended before. A writer that arrives later
-- waits for the COMMIT and then reads the new token: nothing is left to drain. (PostgreSQL releases the keys after the COMMIT is
-- visible.) If a key is not free, raising must come first and waiting after it: fence.raise, fence.drain. A writer of the
-- superseded grant waits as long as the COMMIT takes; so nothing else belongs in this transaction.
--
-- fence.arm is the cost of a lease on top of its lock, so names in it are qualified; a SET clause costs time.
--
-- While a long transaction holds a snapshot, each raise leaves a version of the row that can't be removed, and a search for
-- resource = p_resource reads the oldest first: after 3,600 raises on 50 pages. The index has equal keys in the order of their
-- place, and new pages are appended to the table. So fence.arm searches backwards (>=, <=, DESC), and reads the newest first.
-- This is only for speed.
--
-- A session that locks several resources locks them in the order of the names' bytes, so that two sessions can't deadlock.

-- The fences as people and the gateway may see them: no seal.
CREATE OR REPLACE VIEW fence.fences AS
  SELECT resource, token, seal IS NOT NULL AS sealed, holder, armed_at, cardinality(undrained) AS undrained, ended_at
    FROM fence.resources;
REVOKE ALL ON fence.fences FROM PUBLIC, fence_writer, fence_gateway;
GRANT SELECT ON fence.fences TO fence_gateway;

-- Phase 1. Raises the fence if the recorded token is lower. Waits at most p_limit for another raise of the resource, and for no
-- sealed writer. Raises ZF005 after p_limit: a writer whose unsealed token raised the fence has not ended. Returns raised = true
-- if the fence holds this very grant, by this call or by an earlier one whose acknowledgement was lost. Otherwise nothing was
-- changed, and `recorded` is the recorded token. A grant that has ended is not raised again: that takes a higher token.
CREATE OR REPLACE FUNCTION fence.raise(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval DEFAULT '5 s',
                            OUT raised boolean, OUT recorded bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  held_by text;
  v fence.verdict;
  fault text := coalesce(
    'resource ' || fence.resource_fault(p_resource),
    CASE WHEN coalesce(p_token, 0) <= 0 THEN 'token is not a positive number' END,
    CASE WHEN octet_length(p_seal_hash) <> 32 THEN 'seal hash is not 32 bytes long' END);
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();
  PERFORM fence.commit_durably();
  PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
  IF NOT FOUND AND NOT fence.take_turn(p_resource, 1000 * extract(epoch FROM p_limit)) THEN
    held_by := fence.arming_named(p_resource);
    v := fence.refusal('ZF005', format('fence of "%s" was not raised to %s: an earlier raise has not ended: %s', fence.shown(p_resource), p_token, held_by),
                       p_resource, NULL, NULL, NULL, NULL, held_by);
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;

  SELECT token, seal, undrained, ended_at INTO f FROM fence.resources WHERE resource = p_resource;
  recorded := coalesce(f.token, fence.floor_of(p_resource));   -- the floor is read with the turn
  -- A name that fits a pattern of fence.unsealed never retires, so the floor of the day on which it was allowed binds it.
  IF f.token IS NULL AND recorded >= p_token AND fence.floor_of_unsealed(p_resource) >= p_token THEN
    DELETE FROM fence.arms a WHERE a.resource = p_resource;   -- a turn stays only beside its fence
    raised := false;
    RETURN;
  ELSIF f.token >= p_token THEN
    raised := f.token = p_token AND f.seal IS NOT DISTINCT FROM p_seal_hash AND f.ended_at IS NULL;
    RETURN;
  ELSIF fence.key(p_resource, p_token, p_seal_hash) = ANY (f.undrained || fence.key(p_resource, f.token, f.seal)) THEN
    RAISE EXCEPTION 'seal was used for an earlier token of "%"; each token needs a new one', p_resource
      USING ERRCODE = 'invalid_parameter_value';
  END IF;

  -- A superseded key that is free now is drained permanently: a writer that locks it later reads this or a newer token. UPDATE,
  -- else INSERT, because ON CONFLICT DO UPDATE locks first and so leaves xmax <> 0 in the new version.
  UPDATE fence.resources
     SET token = p_token, seal = p_seal_hash, holder = coalesce(p_holder, ''), armed_at = now(), ended_at = NULL,
         undrained = ARRAY(SELECT k FROM unnest(undrained) k WHERE NOT fence.try_lock(k, true))
                     || fence.key(resource, token, seal)
   WHERE resource = p_resource AND token < p_token;
  IF NOT FOUND THEN
    INSERT INTO fence.resources (resource, token, seal, holder, armed_at)
    VALUES (p_resource, p_token, p_seal_hash, coalesce(p_holder, ''), now());
  END IF;
  raised := true;
  recorded := p_token;
END $$;
REVOKE ALL ON FUNCTION fence.raise(text, bigint, bytea, text, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.raise(text, bigint, bytea, text, interval) TO fence_gateway;

-- p_xmin is of a row that the current transaction sees. Returns whether this transaction, or a subtransaction of it, wrote the
-- row. Otherwise it is committed. The numbers of subtransactions follow that of their transaction.
CREATE OR REPLACE FUNCTION fence.is_uncommitted(p_xmin xid) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own bigint := pg_current_xact_id_if_assigned()::text;
BEGIN
  RETURN coalesce(pg_xact_status((own + ((p_xmin::text::bigint - own) & 4294967295))::text::xid8) = 'in progress', false);
EXCEPTION WHEN invalid_parameter_value THEN   -- in the future: so the version is very old, and frozen
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.is_uncommitted(xid) FROM PUBLIC, fence_writer, fence_gateway;

-- Ends the other sessions that hold one superseded key. Returns in `told` how many got the signal, and in `held_by` which could
-- not be, and why. Waits for a holder that has just ended, such as a prepared transaction that is being committed.
CREATE OR REPLACE FUNCTION fence.end_holders(p_key bigint, OUT told int, OUT held_by text) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  h record;
BEGIN
  told := 0;
  FOR h IN SELECT * FROM fence.holders(p_key) x WHERE x.writer AND (x.pid IS NOT NULL OR x.gid IS NOT NULL) AND x.pid IS DISTINCT FROM pg_backend_pid() LOOP
    IF h.pid IS NULL THEN
      held_by := format('prepared transaction %L; ROLLBACK PREPARED or COMMIT PREPARED it', h.gid);
    ELSE
      BEGIN
        told := told + pg_terminate_backend(h.pid)::int;
      EXCEPTION WHEN insufficient_privilege THEN
        held_by := format('process %s, which %I may not end (%s)', h.pid, current_user, sqlerrm)
          || CASE WHEN pg_has_role(current_user, 'pg_signal_backend', 'USAGE') THEN ''
                  ELSE format('; as a superuser: GRANT pg_signal_backend TO %I', current_user) END;
      END;
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.end_holders(bigint) FROM PUBLIC, fence_writer, fence_gateway;

-- Phase 2. Waits until no writer of a superseded grant is in flight. Writers that still are after p_grace are stale by proof,
-- and their sessions are ended. (pg_blocking_pids does not help: it also names waiting arms.) A signal ends a session, not a
-- transaction, and a pooled session may just have moved on to other work: therefore the grace. ours = false: the fence holds
-- another grant, which `recorded` names, and nothing was drained. `ended` counts the signals sent. Raises ZF005 if a holder
-- can't be ended, or p_limit has passed, or this session is a holder: PostgreSQL never makes a session wait for its own lock, so
-- that is looked up. Raises 25000 if this transaction has changed the fence: nobody else sees the change yet.
CREATE OR REPLACE FUNCTION fence.drain(p_resource text, p_token bigint, p_seal_hash bytea,
                            p_grace interval DEFAULT '200 ms', p_limit interval DEFAULT '5 s',
                            OUT ours boolean, OUT recorded bigint, OUT ended int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  -- Milliseconds, counted by the waits, because a clock may jump. The limit leaves time to answer before a statement_timeout.
  allowed numeric := 800 * extract(epoch FROM current_setting('statement_timeout')::interval);
  most numeric := least(1000 * extract(epoch FROM p_limit), nullif(allowed, 0));
  grace numeric := least(1000 * extract(epoch FROM p_grace), most / 2);
  waited numeric := 0;
  patience numeric;
  f record;
  k bigint;
  e record;
  held_by text;
  v fence.verdict;
BEGIN
  PERFORM fence.need_read_committed();
  SELECT token, seal, undrained, xmin INTO f FROM fence.resources WHERE resource = p_resource;
  recorded := f.token;
  ours := coalesce(f.token = p_token AND f.seal IS NOT DISTINCT FROM p_seal_hash, false);
  ended := 0;
  IF NOT ours THEN
    RETURN;
  ELSIF fence.is_uncommitted(f.xmin) THEN
    RAISE EXCEPTION 'fence of "%" was changed by this transaction, so writers before token % can''t be drained yet', fence.shown(p_resource), p_token
      USING ERRCODE = 'invalid_transaction_state', HINT = 'Commit the raise, then call fence.drain in a transaction of its own.';
  END IF;
  FOR k IN SELECT DISTINCT u FROM unnest(f.undrained) u ORDER BY u LOOP
    -- No writer holds it shared: drained, because the raise is committed and a writer that locks the key later is refused. An
    -- unrelated session's exclusive lock does no harm: it keeps writers out.
    held_by := (SELECT format('process %s, which is this session', h.pid) FROM fence.holders(k) h WHERE h.writer AND h.pid = pg_backend_pid());
    WHILE held_by IS NULL AND NOT fence.try_lock(k, true) AND EXISTS (SELECT FROM fence.holders(k) h WHERE h.writer) LOOP
      patience := greatest(1, CASE WHEN waited < grace THEN grace - waited ELSE 100 END);
      EXIT WHEN fence.lock_within(k, true, patience);
      waited := waited + patience;
      e := fence.end_holders(k);
      ended := ended + e.told;
      held_by := coalesce(e.held_by, CASE WHEN waited > most THEN
        (SELECT string_agg(format('process %s', h.pid), ', ') || ', signalled and still there' FROM fence.holders(k) h WHERE h.writer AND h.pid IS NOT NULL) END);
    END LOOP;
    IF held_by IS NOT NULL THEN
      v := fence.refusal('ZF005', format('fence of "%s" is raised to %s, but stale transactions still hold it: %s', p_resource, p_token, held_by),
                         p_resource, NULL, p_token, NULL, NULL, held_by);
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.drain(text, bigint, bytea, interval, interval) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.drain(text, bigint, bytea, interval, interval) TO fence_gateway, fence_locker;

-- Raises the fence past its holder, to a seal that nobody knows. Returns the token and the hash for fence.drain, which runs in a
-- transaction of its own. token is NULL if the resource has no fence.
CREATE OR REPLACE FUNCTION fence.revoke(p_resource text, p_holder text DEFAULT NULL, OUT token bigint, OUT seal_hash bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
  IF NOT FOUND AND EXISTS (SELECT FROM fence.arms a WHERE a.resource = p_resource) THEN
    PERFORM fence.take_turn(p_resource, fence.patience());   -- if it fails, fence.raise names the session that holds the turn
  END IF;
  SELECT f.token INTO token FROM fence.resources f WHERE f.resource = p_resource;
  IF token = 9223372036854775807 THEN
    RAISE EXCEPTION 'fence of "%" stands at the highest token there is, so it can''t be raised further', p_resource
      USING ERRCODE = 'program_limit_exceeded';
  ELSIF token IS NOT NULL THEN
    token := token + 1;
    seal_hash := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
    PERFORM fence.raise(p_resource, token, seal_hash, coalesce(p_holder, 'revoked by ' || session_user));
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.revoke(text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.revoke(text, text) TO fence_gateway;

-- Allocates an epoch above p_above and above every earlier one, durably once committed.
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

-- Raises the fence if nothing is to be drained. true: the fence holds this grant, by this call, and no writer of an older one is
-- in flight. false: fence.raise and fence.drain have to decide; nothing was changed, except that a resource without a fence is
-- raised.
CREATE OR REPLACE FUNCTION fence.arm(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval DEFAULT '5 s')
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
  IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
     AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'on' THEN
    -- The turn among the sessions that change the row, as in fence.raise.
    PERFORM FROM fence.arms a WHERE a.resource OPERATOR(pg_catalog.=) p_resource FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      -- CASE locks the key only if the rest holds. NULL is for arm_otherwise.
      UPDATE fence.resources f
         SET token = p_token, seal = p_seal_hash, holder = coalesce(p_holder, ''), armed_at = pg_catalog.now(), ended_at = NULL
       WHERE f.ctid OPERATOR(pg_catalog.=) (SELECT n.ctid FROM fence.resources n
                WHERE n.resource OPERATOR(pg_catalog.>=) p_resource AND n.resource OPERATOR(pg_catalog.<=) p_resource ORDER BY n.resource DESC LIMIT 1)
         AND f.resource OPERATOR(pg_catalog.=) p_resource
         AND CASE WHEN f.token OPERATOR(pg_catalog.<) p_token AND f.undrained OPERATOR(pg_catalog.=) '{}'::pg_catalog.int8[]
                   AND f.seal OPERATOR(pg_catalog.<>) p_seal_hash
                  THEN fence.try_lock(fence.key(f.resource, f.token, f.seal), true) END;
      IF FOUND THEN
        RETURN true;
      END IF;
    END IF;
  END IF;
  RETURN fence.arm_otherwise(p_resource, p_token, p_seal_hash, p_holder, p_limit);
END $$;
REVOKE ALL ON FUNCTION fence.arm(text, bigint, bytea, text, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.arm(text, bigint, bytea, text, interval) TO fence_gateway;

-- The rarer cases: keys that earlier raises have left, the first grant of a resource, an unsealed one.
CREATE OR REPLACE FUNCTION fence.arm_otherwise(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    RETURN false;
  END IF;
  PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE fence.resources f
       SET token = p_token, seal = p_seal_hash, holder = coalesce(p_holder, ''), armed_at = now(), ended_at = NULL, undrained = '{}'
     WHERE f.resource = p_resource
       AND CASE WHEN f.token < p_token AND fence.key(p_resource, p_token, p_seal_hash) <> ALL (f.undrained || fence.key(f.resource, f.token, f.seal))
                THEN NOT EXISTS (SELECT FROM unnest(f.undrained || fence.key(f.resource, f.token, f.seal)) k WHERE NOT fence.try_lock(k, true))
                ELSE false END;
    RETURN FOUND;
  END IF;
  IF NOT EXISTS (SELECT FROM fence.resources f WHERE f.resource = p_resource) THEN
    PERFORM fence.raise(p_resource, p_token, p_seal_hash, p_holder, p_limit);
    -- If it superseded no grant, the arm is complete; another arm may have been first.
    RETURN EXISTS (SELECT FROM fence.resources f WHERE f.resource = p_resource AND f.token = p_token AND f.seal = p_seal_hash AND f.undrained = '{}');
  END IF;
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.arm_otherwise(text, bigint, bytea, text, interval) FROM PUBLIC, fence_writer, fence_gateway;

-- Phase 1 of arming several resources: raises all of them or none, in one transaction; see fence.raise. If one recorded token is
-- not lower, raised is false, and `resource` and `recorded` name it. This check comes before the first change: a raise that is
-- rolled back would leave xmax <> 0 and send checks at REPEATABLE READ down the slow path. Waits at most p_limit in all.
CREATE OR REPLACE FUNCTION fence.raise_all(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_holders text[], p_limit interval DEFAULT '5 s',
                                OUT raised boolean, OUT resource text, OUT recorded bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  until timestamptz := clock_timestamp() + p_limit;
  a record;
  r record;
  held_by text;
  v fence.verdict;
  fault text := CASE
    WHEN coalesce(cardinality(p_resources), 0) = 0 THEN 'resources are missing'
    WHEN ARRAY[cardinality(p_tokens), cardinality(p_seal_hashes), cardinality(p_holders)] <> array_fill(cardinality(p_resources), ARRAY[3])
      THEN 'tokens, seal hashes and holders are not as many as resources'
    WHEN (SELECT count(DISTINCT x) < count(*) FROM unnest(p_resources) x) THEN 'resources name one resource twice'
    ELSE (SELECT min('resource ' || fence.resource_fault(x)) FROM unnest(p_resources) x)
  END;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();

  -- The turn of each, in order. From then on no other session changes these rows.
  FOR a IN SELECT x.r FROM unnest(p_resources) x(r) ORDER BY x.r COLLATE "C" LOOP
    PERFORM FROM fence.arms w WHERE w.resource = a.r FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND NOT fence.take_turn(a.r, 1000 * extract(epoch FROM until - clock_timestamp())) THEN
      held_by := fence.arming_named(a.r);
      v := fence.refusal('ZF005', format('fence of "%s" was not raised: an earlier raise has not ended: %s', a.r, held_by),
                         a.r, NULL, NULL, NULL, NULL, held_by);
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
  END LOOP;

  SELECT x.r, coalesce(f.token, fence.floor_of(x.r)) INTO raise_all.resource, raise_all.recorded
    FROM unnest(p_resources, p_tokens, p_seal_hashes) x(r, token, seal_hash) LEFT JOIN fence.resources f ON f.resource = x.r
   WHERE f.token > x.token OR f.token = x.token AND (f.seal IS DISTINCT FROM x.seal_hash OR f.ended_at IS NOT NULL)
      OR f.token IS NULL AND fence.floor_of(x.r) >= x.token
   ORDER BY x.r COLLATE "C" LIMIT 1;
  raised := NOT FOUND;
  IF NOT raised THEN
    DELETE FROM fence.arms w WHERE w.resource = ANY (p_resources) AND NOT EXISTS (SELECT FROM fence.resources f WHERE f.resource = w.resource);
    RETURN;
  END IF;
  FOR a IN SELECT * FROM unnest(p_resources, p_tokens, p_seal_hashes, p_holders) x(r, token, seal_hash, holder) ORDER BY x.r COLLATE "C" LOOP
    SELECT * INTO r FROM fence.raise(a.r, a.token, a.seal_hash, a.holder, p_limit);
    IF NOT r.raised THEN
      RAISE EXCEPTION 'fence of "%" changed while its turn was held', a.r USING ERRCODE = 'internal_error';
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.raise_all(text[], bigint[], bytea[], text[], interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.raise_all(text[], bigint[], bytea[], text[], interval) TO fence_gateway;

-- Phase 2 for several: drains each, in order; see fence.drain. The grace and the limit are for all together. If one fence holds
-- another grant, ours is false, and `resource` and `recorded` name it.
CREATE OR REPLACE FUNCTION fence.drain_all(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[],
                                p_grace interval DEFAULT '200 ms', p_limit interval DEFAULT '5 s',
                                OUT ours boolean, OUT resource text, OUT recorded bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  begun timestamptz := clock_timestamp();
  allowed interval := 0.8 * nullif(current_setting('statement_timeout')::interval, '0');   -- time to answer, as in fence.drain
  most interval := least(p_limit, allowed);
  spent interval;
  a record;
  d record;
BEGIN
  ours := true;
  FOR a IN SELECT * FROM unnest(p_resources, p_tokens, p_seal_hashes) x(r, token, seal_hash) ORDER BY x.r COLLATE "C" LOOP
    LOOP
      spent := clock_timestamp() - begun;
      BEGIN
        SELECT * INTO d FROM fence.drain(a.r, a.token, a.seal_hash, greatest(p_grace - spent, '0'), greatest(most - spent, '0'));
        EXIT;
      EXCEPTION WHEN deadlock_detected THEN   -- with a stale writer of two of them, which is refused when its short wait ends
        NULL;
      END;
    END LOOP;
    IF NOT d.ours THEN
      ours := false;
      drain_all.resource := a.r;
      drain_all.recorded := d.recorded;
      RETURN;
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.drain_all(text[], bigint[], bytea[], interval, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.drain_all(text[], bigint[], bytea[], interval, interval) TO fence_gateway;
