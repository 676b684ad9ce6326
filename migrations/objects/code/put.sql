-- The commit of an upload of one blob, which most writes are: the short path of objects.commit_upload, alone or several at a
-- time.

-- The common case of objects.commit_upload, for one blob: a lease's grant that is current, no conditions, a pending blob, no
-- earlier attempt. Any other case (refusals, other rules, repetitions) changes nothing, and returns NULL. The check is
-- fence.verify's: lock the grant's key, then read the fence in a new statement. p_patient: waits for another attempt.
CREATE OR REPLACE FUNCTION objects.try_put(
  p_version uuid, p_bucket text, p_key text, p_blob uuid, p_size bigint, p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_patient boolean, OUT modified timestamptz, OUT kept boolean
)
LANGUAGE plpgsql AS $$
DECLARE
  b record;
  r record;
  f record;
  held bytea := p_seal;   -- its SHA-256: the recorded one, where the gateway has authenticated the token itself
  turn bigint := hashtextextended(p_invocation, hashtextextended(p_key, hashtextextended(p_bucket, 0)));   -- objects.take_turn
  old uuid;
  blob uuid;
BEGIN
  IF turn IS NULL THEN
    NULL;
  ELSIF p_patient THEN
    PERFORM fence.lock(turn);
  ELSIF NOT fence.try_lock(turn, true) THEN
    RETURN;
  END IF;
  -- As in objects.authorize: the rule can't change until the transaction ends.
  IF NOT fence.try_lock(hashtextextended(p_bucket, 1), false) THEN
    RETURN;
  END IF;
  SELECT x.depth, x.mode, x.keep_count, x.retention INTO b FROM objects.buckets x WHERE x.name = p_bucket;
  SELECT x.depth, x.mode INTO r FROM objects.prefix_rules x
   WHERE x.bucket = p_bucket AND starts_with(p_key, x.prefix) ORDER BY length(x.prefix) DESC LIMIT 1;
  IF FOUND THEN
    b.depth := r.depth;
    b.mode := r.mode;
  END IF;
  IF (b.mode = 'lease' AND p_resource = objects.resource_of(p_bucket, b.depth, p_key)) IS NOT TRUE THEN
    RETURN;
  END IF;
  IF b.retention IS NOT NULL AND EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key) THEN
    RETURN;   -- it is written once: most likely a refusal
  END IF;
  IF p_seal IS NULL THEN
    SELECT x.seal INTO held FROM fence.resources x WHERE x.resource = p_resource AND x.token = p_token;
  END IF;
  IF (octet_length(held) > 0) IS NOT TRUE OR NOT fence.try_lock(fence.key(p_resource, p_token, held), false) THEN
    RETURN;
  END IF;
  SELECT x.token, x.holder INTO f FROM fence.resources x
   WHERE x.resource = p_resource AND x.seal = held AND (x.token = p_token OR p_token = 0 AND p_seal IS NOT NULL) AND x.ended_at IS NULL;
  IF NOT FOUND OR p_invocation IS NOT NULL AND EXISTS (
    SELECT FROM objects.versions v WHERE v.bucket = p_bucket AND v.key = p_key AND v.invocation_id = p_invocation) THEN
    RETURN;
  END IF;
  -- The blob's row serialises the attempts of one commit: one that is under way in another session ends first.
  UPDATE objects.blobs x SET state = 'live', version = p_version, changed_at = now() WHERE x.id = p_blob AND x.state = 'pending';
  IF NOT FOUND THEN
    RETURN;
  END IF;
  INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, holder, invocation_id)
  VALUES (p_version, p_bucket, p_key, ARRAY[p_blob], ARRAY[p_size], p_size, p_etag, p_attributes, p_resource, f.token, f.holder, p_invocation)
  ON CONFLICT DO NOTHING RETURNING created_at INTO modified;
  IF modified IS NULL THEN   -- another attempt committed between the look and the INSERT
    UPDATE objects.blobs x SET state = 'pending', version = NULL WHERE x.id = p_blob;
    RETURN;
  END IF;

  kept := b.keep_count IS DISTINCT FROM 0;
  LOOP   -- as in objects.make_current
    SELECT p.version INTO old FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key FOR UPDATE;
    IF FOUND THEN
      IF b.retention IS NOT NULL THEN   -- the pointer appeared in between; a refusal lets the group go one by one
        PERFORM objects.check_retained(p_bucket, old);
      END IF;
      UPDATE objects.pointers p SET version = p_version, size = p_size, etag = p_etag, modified_at = modified
       WHERE p.bucket = p_bucket AND p.key = p_key;
      EXIT;
    END IF;
    INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
    VALUES (p_bucket, p_key, p_version, p_size, p_etag, modified) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN;
    END IF;
  END LOOP;
  IF NOT kept THEN
    -- The only version that ever listed its blob: no other can list it, since restoring it takes the pointer's lock first.
    SELECT v.blobs[1] INTO blob FROM objects.versions v
     WHERE v.id = old AND v.origin IS NULL AND cardinality(v.blobs) = 1 AND NOT EXISTS (SELECT FROM objects.versions o WHERE o.origin = old);
    IF FOUND THEN
      UPDATE objects.blobs x SET state = 'superseded', changed_at = now() WHERE x.id = blob AND x.state = 'live';
      RETURN;
    END IF;
  END IF;
  PERFORM objects.retire(p_bucket, old);
END $$;
REVOKE ALL ON FUNCTION objects.try_put(uuid, text, text, uuid, bigint, text, jsonb, text, bigint, bytea, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns whether the session may take the short path: its COMMIT is durable, and each statement has a new snapshot; see
-- objects.begin_change.
CREATE OR REPLACE FUNCTION objects.is_usual() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
     AND (pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'on'
          OR pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'remote_apply')
$$;
REVOKE ALL ON FUNCTION objects.is_usual() FROM PUBLIC, fence_writer, fence_gateway;

-- objects.commit_upload for one blob, with a short answer. Leaves all but the common case to it. Plans are made once and use
-- indexes, whatever the tables' sizes were when they were made.
CREATE OR REPLACE FUNCTION objects.commit_put(
  p_version uuid, p_bucket text, p_key text, p_blob uuid, p_size bigint, p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean,
  OUT version uuid, OUT modified timestamptz, OUT kept boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  short record;
BEGIN
  IF p_if_match IS NULL AND NOT p_if_none_match AND objects.is_usual() THEN
    short := objects.try_put(p_version, p_bucket, p_key, p_blob, p_size, p_etag, p_attributes, p_resource, p_token, p_seal, p_invocation, true);
    IF short.modified IS NOT NULL THEN
      version := p_version;
      modified := short.modified;
      kept := short.kept;
      RETURN;
    END IF;
  END IF;
  SELECT v.id, v.created_at, objects.keeps(p_bucket) INTO version, modified, kept
    FROM objects.commit_upload(p_version, p_bucket, p_key, ARRAY[p_blob], ARRAY[p_size], p_etag, p_attributes, p_resource, p_token, p_seal,
                               p_invocation, p_if_match, p_if_none_match) v;
END $$;
REVOKE ALL ON FUNCTION objects.commit_put(uuid, text, text, uuid, bigint, text, jsonb, text, bigint, bytea, text, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.commit_put(uuid, text, text, uuid, bigint, text, jsonb, text, bigint, bytea, text, text, boolean) TO fence_gateway;

-- Commits several uploads that arrived together, in one transaction: one flush of the WAL, one answer. Each is as in
-- objects.commit_put without conditions. Uploads that are not the common case change nothing, have no row in the answer, and are
-- left to a call of their own: a refused one must not undo the others. The caller passes them in the order of bucket and key, so
-- that two groups can't deadlock. If one waits for another session's lock, nothing of the group is done (55P03), and each is
-- committed alone: one upload's wait must not delay the others.
CREATE OR REPLACE FUNCTION objects.commit_puts(
  p_versions uuid[], p_buckets text[], p_keys text[], p_blobs uuid[], p_sizes bigint[], p_etags text[], p_attributes text[],
  p_resources text[], p_tokens bigint[], p_seals bytea[], p_invocations text[]
) RETURNS TABLE (n integer, modified timestamptz, kept boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
SET lock_timeout = '50ms' AS $$
DECLARE
  short record;
BEGIN
  IF NOT objects.is_usual() THEN
    RETURN;
  END IF;
  FOR i IN 1..cardinality(p_versions) LOOP
    short := objects.try_put(p_versions[i], p_buckets[i], p_keys[i], p_blobs[i], p_sizes[i], p_etags[i], p_attributes[i]::jsonb,
                             p_resources[i], p_tokens[i], p_seals[i], p_invocations[i], false);
    IF short.modified IS NOT NULL THEN
      n := i;
      modified := short.modified;
      kept := short.kept;
      RETURN NEXT;
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION objects.commit_puts(uuid[], text[], text[], uuid[], bigint[], text[], text[], text[], bigint[], bytea[], text[]) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.commit_puts(uuid[], text[], text[], uuid[], bigint[], text[], text[], text[], bigint[], bytea[], text[]) TO fence_gateway;
