-- The check: is the presented grant the one that the fence records? It runs inside the transaction that it protects.
--
-- The rule. A writer LOCKS its grant's advisory key (shared, to the end of the transaction), then READS the fence, in a
-- new statement. Arming PUBLISHES the new token (commit), then locks the superseded key exclusively. So either the
-- writer sees the new token and is refused, or draining sees the writer and waits for it or ends it.
--
-- Facts behind it, each tested:
--  * Reading before locking, or without locking, is unsafe. A STABLE function would read a snapshot from before the lock.
--  * READ COMMITTED takes a new snapshot for each statement in here. REPEATABLE READ and SERIALIZABLE do not: there a
--    row is proven to be the newest version by xmax = 0, and otherwise by a row lock that fails when it is not.
--  * ROLLBACK TO a savepoint gives back a lock taken after it; so every statement checks again. Nothing that a client can
--    set may remember "already checked".
--  * Row locks in the hot path starve arming and double the WAL; advisory locks touch no table.
--
-- Settings: fence.resource (percent-encoded; a value without '%' is itself) and fence.token ('34.<seal>', '0.<seal>', '34').
-- They come with the connection, with SET, or with fence.use. After SET LOCAL ends a setting reads '', not NULL.
-- No message, DETAIL or CONTEXT in here may show a seal, nor any part of a malformed token.
SET ROLE fence_owner;

-- Undoes the percent-encoding; NULL where it is malformed. convert_from refuses what is not valid in UTF-8.
CREATE FUNCTION fence.unescape(p_escaped text) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  bytes bytea := '';
  part text;
  first boolean := true;
BEGIN
  IF octet_length(p_escaped) > 1536 THEN   -- a name has at most 512 bytes
    RETURN NULL;
  END IF;
  FOREACH part IN ARRAY string_to_array(p_escaped, '%') LOOP
    IF first THEN
      bytes := convert_to(part, 'UTF8');
    ELSIF part ~ '^[0-9A-Fa-f]{2}' THEN
      bytes := bytes || decode(left(part, 2), 'hex') || convert_to(substr(part, 3), 'UTF8');
    ELSE
      RETURN NULL;
    END IF;
    first := false;
  END LOOP;
  RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.unescape(text) FROM PUBLIC;

-- What a check comes to: the recorded token, or the error to raise. The functions that a client calls raise it themselves,
-- so that a refusal's CONTEXT is one line.
CREATE TYPE fence.verdict AS (token bigint, state text, message text, detail text, hint text);

-- A refusal. In DETAIL tokens are text: they may exceed what a double holds exactly.
CREATE FUNCTION fence.refusal(p_state text, p_message text, p_resource text, p_presented bigint, p_recorded bigint,
                              p_needed text DEFAULT NULL, p_advice text DEFAULT NULL, p_held_by text DEFAULT NULL)
RETURNS fence.verdict LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ROW(NULL, p_state, p_message,
    json_strip_nulls(json_build_object('resource', p_resource, 'presented', p_presented::text, 'recorded', p_recorded::text,
                                       'needed', p_needed, 'held_by', p_held_by))::text,
    concat_ws(' ', CASE p_state
      WHEN 'ZF001' THEN 'A newer holder has taken over. Stop; acquire the resource again and start from what it wrote.'
      WHEN 'ZF002' THEN 'Acquire a lease and present its grant with the write.'
      WHEN 'ZF003' THEN 'Present the token and seal exactly as they were issued, or acquire the resource again.'
      WHEN 'ZF004' THEN 'Acquire the resource that the write needs.'
      WHEN 'ZF005' THEN 'End the transactions that still hold the resource, then acquire again.'
    END, p_advice))::fence.verdict
$$;
REVOKE ALL ON FUNCTION fence.refusal(text, text, text, bigint, bigint, text, text, text) FROM PUBLIC;

-- Whether unsealed tokens are accepted for a resource.
CREATE FUNCTION fence.accepts_unsealed(p_resource text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM fence.unsealed u WHERE p_resource LIKE   -- chr(92) is \, whatever standard_conforming_strings says
    replace(replace(replace(replace(u.pattern, chr(92), repeat(chr(92), 2)), '%', chr(92) || '%'), '_', chr(92) || '_'), '*', '%'))
$$;
REVOKE ALL ON FUNCTION fence.accepts_unsealed(text) FROM PUBLIC;

-- At REPEATABLE READ and SERIALIZABLE: is the version in this snapshot the newest committed one? A row lock answers
-- (serialization_failure: no). It is taken in a subtransaction that rolls back, because arming must never wait for it,
-- and NOWAIT: a raise that is not committed yet will drain after its commit, and finds the advisory lock that the caller
-- holds by now.
CREATE FUNCTION fence.is_newest(p_resource text) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fence.resources f WHERE f.resource = p_resource FOR SHARE NOWAIT;
  RAISE EXCEPTION USING ERRCODE = 'ZF000';
EXCEPTION
  WHEN SQLSTATE 'ZF000' OR lock_not_available THEN RETURN true;
  WHEN serialization_failure THEN RETURN false;
  WHEN read_only_sql_transaction THEN RETURN false;   -- it can't tell
END $$;
REVOKE ALL ON FUNCTION fence.is_newest(text) FROM PUBLIC;

-- Makes the COMMIT of the transaction at hand durable, whatever the session chose: with synchronous_commit = off an
-- acknowledged raise was lost in a crash. A SET clause would not do: it is undone before COMMIT.
CREATE FUNCTION fence.commit_durably() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.commit_durably() FROM PUBLIC;

-- An unsealed token above the recorded one raises the fence itself, in the writer's transaction: first its turn among those
-- who change the row, then the key of every grant before it, exclusively (so their writers are through, and new ones wait),
-- all to the end of the transaction; then the row. Sorted, so that two can't wait for each other. A plain UPDATE: ON CONFLICT
-- DO UPDATE would leave xmax <> 0 in the new version. The verdict is NULL, or ZF005 when somebody does not end in time.
CREATE FUNCTION fence.raise_unsealed(p_resource text, p_token bigint) RETURNS fence.verdict LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  k bigint;
  held_by text;
BEGIN
  PERFORM fence.commit_durably();
  PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
  IF NOT FOUND AND NOT fence.take_turn(p_resource, fence.patience()) THEN
    held_by := fence.arming_named(p_resource);
    RETURN fence.refusal('ZF005', format('fence of "%s" was not raised to %s: an earlier raise has not ended: %s', p_resource, p_token, held_by),
                         p_resource, p_token, NULL, NULL, NULL, held_by);
  END IF;
  SELECT token, seal, undrained INTO f FROM fence.resources WHERE resource = p_resource;
  IF f.token >= p_token THEN
    RETURN NULL;   -- another writer was faster; the caller looks again
  ELSIF f.token IS NULL THEN
    BEGIN
      INSERT INTO fence.resources (resource, token, holder, armed_at) VALUES (p_resource, p_token, session_user, now());
    EXCEPTION WHEN unique_violation THEN   -- a row that this transaction's snapshot cannot see
      RAISE EXCEPTION 'could not serialize access to the fence of "%"', p_resource USING ERRCODE = 'serialization_failure';
    END;
    RETURN NULL;
  END IF;
  FOR k IN SELECT DISTINCT u FROM unnest(f.undrained || fence.key(p_resource, f.token, f.seal)) u ORDER BY u LOOP
    IF NOT pg_try_advisory_xact_lock(k) AND NOT fence.lock_within(k, true, fence.patience()) THEN
      held_by := fence.holders_named(k);
      RETURN fence.refusal('ZF005', format('fence of "%s" was not raised to %s: an older writer has not ended: %s', p_resource, p_token, held_by),
                           p_resource, p_token, f.token, NULL, NULL, held_by);
    END IF;
  END LOOP;
  UPDATE fence.resources SET token = p_token, seal = NULL, holder = session_user, armed_at = now(), undrained = '{}'
   WHERE resource = p_resource AND token < p_token;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.raise_unsealed(text, bigint) FROM PUBLIC;

-- The whole decision, for a resource and a token that are well-formed. p_kind: 'sealed' (p_seal_hash given; token 0 means
-- "the one that this seal was issued with"), 'unsealed', or 'issued' (the caller authenticated the token by other means).
-- The verdict is the recorded token, ZF001, ZF003 or ZF005. Creates no row, except for unsealed tokens where they are accepted.
CREATE FUNCTION fence.verify(p_resource text, p_token bigint, p_seal_hash bytea, p_kind text) RETURNS fence.verdict
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
  never text := format('fencing token %s was never issued for "%s" with the presented seal', p_token, p_resource);
  advice text := CASE WHEN snapshot THEN
    'If it was issued after this transaction began, begin a new transaction: this one cannot see what the last holder wrote.' END;
BEGIN
  LOOP
    SELECT token, seal, xmax = '0'::xid AS untouched INTO f FROM fence.resources WHERE resource = p_resource;

    IF open AND (f.token IS NULL OR f.token < p_token) THEN
      -- Who may not use fence.use may not raise by way of a guarded table either. Tokens stay below 2^53 here, so that nobody
      -- leaves a resource without a next one.
      IF p_token >= 9007199254740992 OR NOT pg_has_role(session_user, 'fence_writer', 'MEMBER') THEN
        RETURN fence.refusal('ZF003', never, p_resource, p_token, f.token, NULL,
                             'Unsealed tokens raise a fence up to 9007199254740991, and for logins that are fence_writer.');
      END IF;
      v := fence.raise_unsealed(p_resource, p_token);
      IF v.state IS NOT NULL THEN
        RETURN v;
      END IF;
      CONTINUE;
    ELSIF f.token IS NULL OR p_token > f.token THEN
      RETURN fence.refusal('ZF003', never, p_resource, p_token, f.token, NULL, advice);
    ELSIF p_token < f.token AND (p_token > 0 OR f.seal IS DISTINCT FROM p_seal_hash) THEN
      -- A seal without its token that is not the recorded one: superseded, as far as anybody can tell.
      RETURN fence.refusal('ZF001', format('stale fencing token %s for "%s": the fence stands at %s', p_token, p_resource, f.token),
                           p_resource, p_token, f.token);
    ELSIF p_kind = 'sealed' AND f.seal IS DISTINCT FROM p_seal_hash
       OR p_kind = 'unsealed' AND (f.seal IS NOT NULL OR NOT open) THEN
      RETURN fence.refusal('ZF003', never, p_resource, p_token, f.token, NULL, advice);
    END IF;

    -- It looks current. It is, once the same is read while its key is held. Whoever holds the key exclusively is about to
    -- supersede the grant, or is a stranger: so look again, now and then, and not for ever.
    wanted := fence.key(p_resource, f.token, f.seal);
    EXIT WHEN held = wanted;
    IF pg_try_advisory_xact_lock_shared(wanted) OR fence.lock_within(wanted, false, 100) THEN
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
    RETURN fence.refusal('ZF001', format('stale fencing token %s for "%s": the fence was raised after this transaction''s snapshot',
                                         p_token, p_resource), p_resource, p_token, NULL, NULL,
      CASE WHEN current_setting('transaction_read_only')::boolean THEN
        'If the raise was rolled back, a read-only transaction can tell at READ COMMITTED only.' END);
  END IF;
  RETURN ROW(f.token, NULL, NULL, NULL, NULL)::fence.verdict;
END $$;
REVOKE ALL ON FUNCTION fence.verify(text, bigint, bytea, text) FROM PUBLIC;

-- Decides on the settings as they are, for a write that needs p_needed: a resource; 'orders/*' for any resource below
-- 'orders/'; NULL for any resource. The verdict is the recorded token, or ZF001 to ZF004.
CREATE FUNCTION fence.verify_settings(p_needed text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  setting text := current_setting('fence.resource', true);
  presented text := current_setting('fence.token', true);
  resource text := setting;
  fault text;
  number text := split_part(presented, '.', 1);
  seal text := CASE WHEN strpos(presented, '.') > 0 THEN substr(presented, strpos(presented, '.') + 1) END;
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN fence.refusal('55000', 'a standby may be behind the fence, so a grant can''t be checked here', NULL, NULL, NULL, NULL,
                         'Present the grant to the primary.');
  END IF;
  IF coalesce(setting, '') = '' OR coalesce(presented, '') = '' THEN
    RETURN fence.refusal('ZF002', concat('write without a fencing token', ': it needs a grant of "' || p_needed || '"'),
                         NULL, NULL, NULL, p_needed);
  END IF;
  IF strpos(setting, '%') > 0 THEN
    resource := fence.unescape(setting);
    IF resource IS NULL THEN
      RETURN fence.refusal('ZF003', 'the setting fence.resource is not a percent-encoded name of at most 512 bytes', left(setting, 512), NULL, NULL);
    END IF;
  END IF;
  fault := fence.resource_fault(resource);
  IF fault IS NOT NULL THEN
    RETURN fence.refusal('ZF003', 'resource ' || fault, left(setting, 512), NULL, NULL);
  ELSIF resource <> p_needed AND NOT (right(p_needed, 1) = '*' AND starts_with(resource, left(p_needed, -1))) THEN
    RETURN fence.refusal('ZF004', format('grant is for "%s", but the write needs "%s"', resource, p_needed),
                         resource, NULL, NULL, p_needed);
  END IF;

  fault := CASE
    WHEN number = '' THEN 'is empty'
    WHEN number !~ '^[0-9]+$' THEN 'is not a decimal number'
    WHEN number = '0' AND seal IS NULL THEN 'is 0; tokens start at 1'
    WHEN number ~ '^0.' THEN 'has a leading zero'
    WHEN length(number) > 19 OR number::numeric > 9223372036854775807 THEN 'is over the int64 range'
  END;
  IF fault IS NOT NULL THEN
    RETURN fence.refusal('ZF003', 'token ' || fault, resource, NULL, NULL);
  ELSIF seal !~ '^[0-9a-f]{32}$' THEN
    RETURN fence.refusal('ZF003', 'seal is not 32 lower-case hexadecimal digits', resource, number::bigint, NULL);
  END IF;
  RETURN fence.verify(resource, number::bigint, sha256(convert_to(seal, 'UTF8')),
                      CASE WHEN seal IS NULL THEN 'unsealed' ELSE 'sealed' END);
END $$;
REVOKE ALL ON FUNCTION fence.verify_settings(text) FROM PUBLIC;

-- The common case of verify_settings in two steps: a sealed grant, a name without percent-encoding, a row that nobody has
-- touched since it was armed. Returns the recorded token, or NULL: then verify_settings decides. It is the hot path, so
-- every name is qualified instead of a SET clause, which costs.
CREATE FUNCTION fence.fast_check(r text, g text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  h pg_catalog.bytea := pg_catalog.sha256(pg_catalog.convert_to(
    pg_catalog.substr(g, pg_catalog.strpos(g, '.') OPERATOR(pg_catalog.+) 1), 'UTF8'));
  recorded pg_catalog.int8;
BEGIN
  -- 1. Lock: fence.key written out. Try only: a drain may be under way, which the slow path waits for.
  IF pg_catalog.strpos(r, '%') OPERATOR(pg_catalog.=) 0
     AND pg_catalog.pg_try_advisory_xact_lock_shared(
           pg_catalog.hashtextextended(pg_catalog.encode(h, 'hex'), pg_catalog.hashtextextended(r, 0)))
  THEN
    -- 2. Read, in a new statement.
    SELECT f.token INTO recorded FROM fence.resources f
     WHERE f.resource OPERATOR(pg_catalog.=) r AND f.seal OPERATOR(pg_catalog.=) h
       AND (pg_catalog.split_part(g, '.', 1) OPERATOR(pg_catalog.=) f.token::pg_catalog.text
            OR pg_catalog.split_part(g, '.', 1) OPERATOR(pg_catalog.=) '0')
       AND f.xmax OPERATOR(pg_catalog.=) '0'::pg_catalog.xid;
  END IF;
  RETURN recorded;
END $$;
REVOKE ALL ON FUNCTION fence.fast_check(text, text) FROM PUBLIC;

-- Whether this is a worker of logical replication, which applies what a publisher's fence has judged. No client can be one.
CREATE FUNCTION fence.replicates() RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pg_stat_get_subscription(NULL) s WHERE s.pid = pg_backend_pid())
$$;
REVOKE ALL ON FUNCTION fence.replicates() FROM PUBLIC;

-- The guard of a table, see fence.protect: a statement trigger with the arguments (resource) or ('', prefix).
CREATE FUNCTION fence.guard() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  r pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  v fence.verdict;
BEGIN
  IF (tg_argv[0] OPERATOR(pg_catalog.=) r OR pg_catalog.starts_with(r, tg_argv[1]))
     AND fence.fast_check(r, pg_catalog.current_setting('fence.token', true)) IS NOT NULL THEN
    RETURN NULL;
  END IF;
  v := fence.verify_settings(CASE WHEN tg_argv[0] OPERATOR(pg_catalog.=) ''
                                  THEN tg_argv[1] OPERATOR(pg_catalog.||) '*' ELSE tg_argv[0] END);
  IF v.state OPERATOR(pg_catalog.=) 'ZF002' AND fence.replicates() THEN
    RETURN NULL;
  END IF;
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN NULL;
END $$;
-- Needed for CREATE TRIGGER only, not to write: fence_writer covers who protects tables. On a table of its own, a login could
-- otherwise present tokens that no right allows it to.
REVOKE ALL ON FUNCTION fence.guard() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.guard() TO fence_writer;

-- Checks the settings now, instead of at the next guarded write; see verify_settings for what `needed` may be. Returns the
-- recorded token.
CREATE FUNCTION fence.check(needed text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  v fence.verdict := fence.verify_settings(needed);
BEGIN
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;
REVOKE ALL ON FUNCTION fence.check(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.check(text) TO fence_writer;

-- Presents a grant for the rest of this transaction and checks it now. The resource is the plain name. Returns the recorded
-- token.
CREATE FUNCTION fence.use(resource text, token text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  setting pg_catalog.text := pg_catalog.set_config('fence.resource', pg_catalog.replace(resource, '%', '%25'), true);
  presented pg_catalog.text := pg_catalog.set_config('fence.token', token, true);
  recorded pg_catalog.int8 := CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN fence.fast_check(setting, presented) END;
  v fence.verdict;
BEGIN
  IF recorded IS NULL THEN
    v := fence.verify_settings(NULL);
    IF v.state IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
    recorded := v.token;
  END IF;
  RETURN recorded;
END $$;
REVOKE ALL ON FUNCTION fence.use(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.use(text, text) TO fence_writer;

-- For a gateway that authenticated (resource, token) by its own MAC, so that no seal is presented: the same check, under
-- the recorded grant's key. Returns the recorded token, which is then the presented one; raises ZF001 or ZF003.
CREATE FUNCTION fence.check_issued(resource text, token bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := coalesce('resource ' || fence.resource_fault(resource),
                         CASE WHEN coalesce(token, 0) <= 0 THEN 'token is not a positive number' END);
  v fence.verdict := CASE WHEN fault IS NULL THEN fence.verify(resource, token, NULL, 'issued')
                          ELSE fence.refusal('ZF003', fault, left(resource, 512), token, NULL) END;
BEGIN
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;
REVOKE ALL ON FUNCTION fence.check_issued(text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.check_issued(text, bigint) TO fence_gateway;

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate schema version 2';
