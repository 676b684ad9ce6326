-- The fence for leases of your own: leases and tokens come from elsewhere (a sequence, an etcd revision, a DynamoDB version),
-- and only the fence is here.
--
--   CALL fence.take('jobs/1', 35, sha256(convert_to('<seal>', 'UTF8')), 'worker-b');   -- by itself, with autocommit
--
-- It raises the fence, commits, and drains: when it has returned, no writer of an older grant can commit. Then the holder reads,
-- and writes under '35.<seal>'. If it fails, the caller does not hold the grant. The caller repeats it with the same seal, or
-- takes a higher token.
--
-- A NULL hash takes a bare token, which every writer can invent. So a pattern must allow it.

-- The patterns whose resources take unsealed tokens.
CREATE OR REPLACE VIEW fence.unsealed_patterns AS SELECT pattern FROM fence.unsealed;
REVOKE ALL ON fence.unsealed_patterns FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT SELECT ON fence.unsealed_patterns TO fence_gateway;

-- Allows unsealed tokens for the resources that fit a pattern, in which '*' stands for any characters. Returns whether the
-- pattern is new. For the schema's owner: every login that is fence_writer can then take over such a resource with an invented
-- token. The pattern's floor is the highest one now, which an old snapshot does not show.
CREATE OR REPLACE FUNCTION fence.allow_unsealed(p_pattern text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := fence.resource_fault(replace(p_pattern, '*', 'x'));
BEGIN
  PERFORM fence.need_read_committed();
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'pattern %', fault USING ERRCODE = 'invalid_parameter_value',
      HINT = 'A pattern is a resource''s name in which ''*'' stands for any characters, such as jobs/*.';
  END IF;
  PERFORM fence.commit_durably();
  INSERT INTO fence.unsealed (pattern) VALUES (p_pattern) ON CONFLICT DO NOTHING;
  RETURN FOUND;
END $$;
REVOKE ALL ON FUNCTION fence.allow_unsealed(text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;

-- Removes a pattern. From the COMMIT on, bare tokens of its resources are refused, unless another pattern fits. Waits 5 s for
-- the transactions whose bare tokens have raised a fence.
CREATE OR REPLACE FUNCTION fence.disallow_unsealed(p_pattern text) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
  gone boolean;
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM fence.commit_durably();
  BEGIN
    PERFORM set_config('lock_timeout', '5s', true);
    DELETE FROM fence.unsealed u WHERE u.pattern = p_pattern;
    gone := FOUND;
    PERFORM set_config('lock_timeout', before, true);
  EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'pattern "%" is in use, so it can''t be taken away', fence.shown(p_pattern) USING ERRCODE = 'lock_not_available',
      HINT = 'A transaction whose bare token has raised a fence has not ended. Wait for it, or end it, then try again.';
  END;
  IF NOT gone THEN
    RAISE EXCEPTION 'pattern "%" is not allowed, so it can''t be taken away', fence.shown(p_pattern) USING ERRCODE = 'undefined_object',
      HINT = 'SELECT * FROM fence.unsealed_patterns lists those that are.';
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.disallow_unsealed(text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;

-- Returns whether unsealed tokens may raise the fence of a resource. The pattern stays to the end of the transaction. At
-- REPEATABLE READ it raises serialization_failure if a pattern was removed after the snapshot.
CREATE OR REPLACE FUNCTION fence.keep_unsealed(p_resource text, p_token bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
  kept boolean;
  v fence.verdict;
BEGIN
  PERFORM set_config('lock_timeout', ceil(fence.patience())::text, true);
  PERFORM FROM fence.unsealed u WHERE fence.fits(p_resource, u.pattern) FOR KEY SHARE;
  kept := FOUND;
  PERFORM set_config('lock_timeout', before, true);
  RETURN kept;
EXCEPTION WHEN lock_not_available THEN
  v := fence.refusal('ZF005', format('fence of "%s" was not raised to %s: its pattern is being taken away', fence.shown(p_resource), p_token),
                     p_resource, p_token);
  RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
END $$;
REVOKE ALL ON FUNCTION fence.keep_unsealed(text, bigint) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;

-- Returns why a grant can't be taken, or NULL.
CREATE OR REPLACE FUNCTION fence.take_fault(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN fence.resource_fault(p_resource) IS NOT NULL THEN 'resource ' || fence.resource_fault(p_resource)
    WHEN p_token IS NULL THEN 'token is NULL'
    WHEN p_token < 1 OR p_token > 9007199254740991 THEN format('token %s is not between 1 and 9007199254740991', p_token)
    WHEN octet_length(p_seal_hash) <> 32 THEN 'seal hash is not 32 bytes long'
    -- A hash of 32 such bytes occurs once in 2^114.
    WHEN encode(p_seal_hash, 'escape') ~ '^[0-9A-Fa-f]{32}$' THEN 'seal hash is the seal itself: give its hash, sha256(''<seal>'')'
  END
$$;
REVOKE ALL ON FUNCTION fence.take_fault(text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;

-- The first phase of fence.take. Raises the fence. A sealed grant that the fence holds already counts as raised: an answer was
-- lost, or draining failed. An unsealed one does not: its holder can't be identified.
CREATE OR REPLACE FUNCTION fence.raise_own(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r record;
  v fence.verdict;
  ours boolean;
  fault text := fence.take_fault(p_resource, p_token, p_seal_hash);
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();
  IF p_seal_hash IS NULL AND NOT fence.keep_unsealed(p_resource, p_token) THEN
    RAISE EXCEPTION 'unsealed tokens are not allowed for "%"', fence.shown(p_resource) USING ERRCODE = 'invalid_parameter_value',
      HINT = 'Give the SHA-256 of a seal; or, as who migrates: fencegate fence allow PATTERN --unsealed';
  END IF;
  SELECT * INTO r FROM fence.raise(p_resource, p_token, p_seal_hash, p_holder);
  ours := r.raised AND (p_seal_hash IS NOT NULL
    OR EXISTS (SELECT FROM fence.resources f WHERE f.resource = p_resource AND fence.is_uncommitted(f.xmin)));
  IF NOT ours THEN
    v := fence.refusal('ZF001', format('token %s for "%s" is not taken: the fence stands at %s, and takes higher ones only', p_token, fence.shown(p_resource), r.recorded),
                       p_resource, p_token, r.recorded, NULL, 'The lock has to give out a token above the recorded one.');
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.raise_own(text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.raise_own(text, bigint, bytea, text) TO fence_gateway;

-- The second phase, after the COMMIT of the first.
CREATE OR REPLACE FUNCTION fence.drain_own(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  d record;
  v fence.verdict;
  fault text := fence.take_fault(p_resource, p_token, p_seal_hash);
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO d FROM fence.drain(p_resource, p_token, p_seal_hash);
  IF NOT d.ours THEN
    v := fence.refusal('ZF001', format('token %s for "%s" was superseded while it was taken: the fence %s', p_token, fence.shown(p_resource),
                                         coalesce('stands at ' || d.recorded, 'is gone')),
                       p_resource, p_token, d.recorded);
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.drain_own(text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON FUNCTION fence.drain_own(text, bigint, bytea) TO fence_gateway;

-- Raises, commits, drains. It has the caller's rights and no SET clause, because a procedure with either can't commit; so names
-- are qualified. The first COMMIT never succeeds, because a subtransaction is open. In a transaction block PostgreSQL reports
-- that instead; if its messages are translated, the second COMMIT fails in its words.
CREATE OR REPLACE PROCEDURE fence.take(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE
  inside boolean;
BEGIN
  BEGIN
    COMMIT;
  EXCEPTION WHEN invalid_transaction_termination THEN
    inside := sqlerrm OPERATOR(pg_catalog.=) 'invalid transaction termination';
  END;
  IF inside THEN
    RAISE EXCEPTION 'fence.take can''t run inside a transaction block: it commits before it drains'
      USING ERRCODE = 'active_sql_transaction', HINT = 'Call it by itself, with autocommit, before the transaction that writes.';
  END IF;
  COMMIT;
  PERFORM fence.raise_own(p_resource, p_token, p_seal_hash, p_holder);
  COMMIT;
  PERFORM fence.drain_own(p_resource, p_token, p_seal_hash);
END $$;
REVOKE ALL ON PROCEDURE fence.take(text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
GRANT EXECUTE ON PROCEDURE fence.take(text, bigint, bytea, text) TO fence_gateway;
