-- Authorization of a write: the fence check, for the rule of the key, inside the transaction that writes it.

-- Every function that changes anything calls this first. It makes the COMMIT durable, whatever the session chose: a crash that
-- restored a condemned row after its bytes were deleted would lose an object. It requires a new snapshot for each statement: a
-- snapshot from before the wait for a lock does not show what that lock's holder did.
CREATE OR REPLACE FUNCTION objects.begin_change() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM fence.commit_durably();
END $$;
REVOKE ALL ON FUNCTION objects.begin_change() FROM PUBLIC, fence_writer, fence_gateway;

-- Holds the rules of a write's bucket, shared, to the end of its transaction; a change of the rules waits for such writes. The
-- lock is advisory, because a lock on the bucket's row makes a multixact when two writes hold it. Any login of the database
-- could take that lock: then the write locks the row. A session that changes the rules takes both.
CREATE OR REPLACE FUNCTION objects.hold_rules(p_bucket text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fence.try_lock(hashtextextended(p_bucket, 1), false) THEN
    PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR SHARE;
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.hold_rules(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Waits for the writes under way. The caller has locked the bucket's row, so no other write begins: a new write finds this
-- session waiting, and waits for the row. Raises 55P03 if writes, or an unrelated session, hold the lock for 10 s.
CREATE OR REPLACE FUNCTION objects.wait_for_writes(p_bucket text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fence.lock_within(hashtextextended(p_bucket, 1), true, 10000) THEN
    RAISE EXCEPTION 'the rules of bucket % can''t change: writes to it, or who else holds its lock, have not ended', p_bucket
      USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.wait_for_writes(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Checks a token of an external minter: raises the fence if the token is higher. Refuses a resource whose grants have seals: a
-- bare number must not take it from its holder.
CREATE OR REPLACE FUNCTION objects.raise_monotone(p_resource text, p_token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  v fence.verdict;
  fault text := coalesce('resource ' || fence.resource_fault(p_resource),
                         CASE WHEN coalesce(p_token, 0) <= 0 OR p_token >= 9007199254740992 THEN 'token is not between 1 and 9007199254740991' END);
BEGIN
  FOR turn IN 1..2 LOOP
    SELECT r.token, r.seal INTO f FROM fence.resources r WHERE r.resource = p_resource;
    IF f.seal IS NOT NULL THEN
      fault := 'resource is held under a lease, which has a seal; give the prefix a resource of its own';
    END IF;
    IF fault IS NOT NULL THEN
      v := fence.refusal('ZF003', fault, left(p_resource, 512), p_token, f.token);
    ELSIF turn = 1 AND (f.token IS NULL OR f.token < p_token) THEN
      v := fence.raise_unsealed(p_resource, p_token);
    END IF;
    IF v.state IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
    IF turn = 1 THEN
      p_token := fence.check_issued(p_resource, p_token);   -- from here on no other session can raise it
    END IF;
  END LOOP;
  RETURN p_token;
END $$;
REVOKE ALL ON FUNCTION objects.raise_monotone(text, bigint) FROM PUBLIC, fence_writer, fence_gateway;

-- Checks that the bucket exists, the grant is of the resource that the key's rule needs, and its token is the recorded one;
-- refuses otherwise. With p_seal, the SHA-256 of the presented seal, the fence authenticates the token (0: "the token that this
-- seal was issued with"); without it the gateway has authenticated it, by its own MAC. p_seal is '' for a token without a seal,
-- which only `monotone` takes. Returns the recorded token; 0 if the rule is `none`, which accepts every caller. Until the
-- transaction ends the bucket's rule can't change, and a new holder's acquisition can't complete.
CREATE OR REPLACE FUNCTION objects.authorize(p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule record;
  needed text;
  v fence.verdict;
BEGIN
  PERFORM objects.hold_rules(p_bucket);
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  SELECT * INTO rule FROM objects.rule_of(p_bucket, p_key);
  IF rule.mode = 'none' THEN
    RETURN 0;
  END IF;
  needed := objects.resource_of(p_bucket, rule.depth, p_key);
  IF p_resource = '' THEN
    v := fence.refusal('ZF002', format('write without a fencing token: it needs a grant of "%s"', needed), NULL, NULL, NULL, needed);
  ELSIF needed <> p_resource THEN
    v := fence.refusal('ZF004', format('grant is for %s, but the write needs %s', p_resource, needed), p_resource, p_token, NULL, needed);
  ELSIF rule.mode = 'monotone' AND p_seal IS DISTINCT FROM '' THEN
    v := fence.refusal('ZF003', 'the rule monotone takes tokens without a seal', p_resource, p_token, NULL);
  ELSIF rule.mode = 'monotone' THEN
    RETURN objects.raise_monotone(p_resource, p_token);
  ELSIF p_seal IS NULL THEN
    RETURN fence.check_issued(p_resource, p_token);
  ELSE
    v := fence.verify(p_resource, p_token, p_seal, 'sealed');
  END IF;
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;
REVOKE ALL ON FUNCTION objects.authorize(text, text, text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the holder of a resource's lease, as the fence recorded it.
CREATE OR REPLACE FUNCTION objects.holder_of(p_resource text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN coalesce((SELECT f.holder FROM fence.resources f WHERE f.resource = p_resource), '');
END $$;
REVOKE ALL ON FUNCTION objects.holder_of(text) FROM PUBLIC, fence_writer, fence_gateway;
