-- What a small upload costs: blobs are announced many at once, ahead of the uploads that will use them, and the common case of a
-- commit is one function of few statements.
SET ROLE fence_owner;

-- Announces blobs that a gateway keeps ready. All of it is as with objects.begin_upload, but for the check of a grant, for there
-- is none yet; and the COMMIT is durable, since many uploads would be refused where a crash took it back. A reserve that its
-- gateway loses, or keeps for too long, is the sweep's, as any upload that was begun and never completed. It may be repeated.
CREATE FUNCTION objects.reserve_blobs(p_blobs uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  INSERT INTO objects.blobs (id) SELECT unnest(p_blobs) ON CONFLICT DO NOTHING;
END $$;

-- Takes back what objects.reserve_blobs announced, of blobs that no upload was given, and tells which of them: only their places
-- may be deleted. A copy of the gateway's process (a machine that went on from a snapshot) may have used the others.
CREATE FUNCTION objects.return_blobs(p_blobs uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  RETURN QUERY DELETE FROM objects.blobs b WHERE b.id = ANY (p_blobs) AND b.state = 'pending' RETURNING b.id;
END $$;

-- objects.commit_upload for one blob, with a short answer. The common case is decided here: a lease's grant that is current, no
-- conditions, a blob that is pending, no earlier attempt. Whatever is not surely that is left to objects.commit_upload, before
-- anything was changed: refusals, other rules, repetitions. The check is fence.verify's: lock the grant's key, then read the
-- fence in a new statement. Plans are made once and go by indexes, whatever the tables' sizes were when they were made.
CREATE FUNCTION objects.commit_put(
  p_version uuid, p_bucket text, p_key text, p_blob uuid, p_size bigint, p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean,
  OUT version uuid, OUT modified timestamptz, OUT kept boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  b record;
  r record;
  f record;
  held bytea := p_seal;   -- its SHA-256: the recorded one, where the gateway has authenticated the token itself
  old uuid;
  blob uuid;
  sure boolean := p_if_match IS NULL AND NOT p_if_none_match
    AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') IN ('on', 'remote_apply');
BEGIN
  IF sure THEN
    -- As in objects.authorize: the rule can't change until the transaction ends.
    SELECT x.depth, x.mode, x.keep_count INTO b FROM objects.buckets x WHERE x.name = p_bucket FOR SHARE;
    SELECT x.depth, x.mode INTO r FROM objects.prefix_rules x
     WHERE x.bucket = p_bucket AND starts_with(p_key, x.prefix) ORDER BY length(x.prefix) DESC LIMIT 1;
    IF FOUND THEN
      b.depth := r.depth;
      b.mode := r.mode;
    END IF;
    sure := coalesce(b.mode = 'lease' AND p_resource = objects.resource_of(p_bucket, b.depth, p_key), false);
  END IF;
  IF sure AND p_seal IS NULL THEN
    SELECT x.seal INTO held FROM fence.resources x WHERE x.resource = p_resource AND x.token = p_token;
  END IF;
  IF sure AND octet_length(held) > 0 AND pg_try_advisory_xact_lock_shared(fence.key(p_resource, p_token, held)) THEN
    SELECT x.token, x.holder INTO f FROM fence.resources x
     WHERE x.resource = p_resource AND x.seal = held AND (x.token = p_token OR p_token = 0 AND p_seal IS NOT NULL);
    sure := FOUND;
    IF sure AND p_invocation IS NOT NULL THEN
      sure := NOT EXISTS (SELECT FROM objects.versions v WHERE v.bucket = p_bucket AND v.key = p_key AND v.invocation_id = p_invocation);
    END IF;
    IF sure THEN   -- The blob's row serialises the tries of one commit: one that is still on its way in another session ends first.
      UPDATE objects.blobs x SET state = 'live', version = p_version, changed_at = now() WHERE x.id = p_blob AND x.state = 'pending';
      sure := FOUND;
    END IF;
  ELSE
    sure := false;
  END IF;
  IF sure THEN
    INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, holder, invocation_id)
    VALUES (p_version, p_bucket, p_key, ARRAY[p_blob], ARRAY[p_size], p_size, p_etag, p_attributes, p_resource, f.token, f.holder, p_invocation)
    ON CONFLICT DO NOTHING RETURNING id, created_at INTO version, modified;
    IF version IS NULL THEN   -- another attempt was committed between the look and the INSERT
      UPDATE objects.blobs x SET state = 'pending', version = NULL WHERE x.id = p_blob;
    END IF;
  END IF;
  IF version IS NULL THEN
    SELECT v.id, v.created_at, objects.keeps(p_bucket) INTO version, modified, kept
      FROM objects.commit_upload(p_version, p_bucket, p_key, ARRAY[p_blob], ARRAY[p_size], p_etag, p_attributes, p_resource, p_token, p_seal,
                                 p_invocation, p_if_match, p_if_none_match) v;
    RETURN;
  END IF;

  kept := b.keep_count IS DISTINCT FROM 0;
  LOOP   -- as objects.make_current
    SELECT p.version INTO old FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key FOR UPDATE;
    IF FOUND THEN
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
    -- The only version that ever listed its blob: nobody else can name it, since restoring it takes the pointer's lock first.
    SELECT v.blobs[1] INTO blob FROM objects.versions v
     WHERE v.id = old AND v.origin IS NULL AND cardinality(v.blobs) = 1 AND NOT EXISTS (SELECT FROM objects.versions o WHERE o.origin = old);
    IF FOUND THEN
      UPDATE objects.blobs x SET state = 'superseded', changed_at = now() WHERE x.id = blob AND x.state = 'live';
      RETURN;
    END IF;
  END IF;
  PERFORM objects.retire(p_bucket, old);
END $$;

REVOKE ALL ON FUNCTION objects.reserve_blobs, objects.return_blobs, objects.commit_put FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.reserve_blobs, objects.return_blobs, objects.commit_put TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 40';
