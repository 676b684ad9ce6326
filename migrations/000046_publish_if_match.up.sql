-- fence.publish and fence.unpublish refuse an if_match that no object can have: one that begins with '!' meant the contrary,
-- since a condition that was staged with an upload may read so (see 000038).
SET ROLE fence_owner;

-- An ETag that an object must have, as a writer named it. What is none is refused, also for a key that is not there.
CREATE FUNCTION objects.wanted_etag(p_etag text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF starts_with(p_etag, '!') THEN
    RAISE EXCEPTION 'if_match is %, and no ETag begins with "!"', p_etag USING ERRCODE = 'invalid_parameter_value',
      HINT = 'Name the ETag that the object must have, without quotes, or * for any.';
  END IF;
  RETURN p_etag;
END $$;

-- As before, but for wanted_etag.
CREATE OR REPLACE FUNCTION fence.publish(stage uuid, if_match text DEFAULT NULL, if_none_match boolean DEFAULT false)
RETURNS TABLE (bucket text, key text, etag text, size bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT p.bucket, p.key, p.etag, (SELECT sum(n)::bigint FROM unnest(p.blob_sizes) n)
    FROM objects.publish(ARRAY[publish.stage], objects.wanted_etag(publish.if_match), coalesce(publish.if_none_match, false)) p
$$;

-- As before, but for wanted_etag.
CREATE OR REPLACE FUNCTION fence.unpublish(bucket text, key text, if_match text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule record;
  needed text;
  v fence.verdict;
  made objects.versions;
  old objects.pointers;
BEGIN
  IF octet_length(unpublish.key) NOT BETWEEN 1 AND 1024 THEN
    RAISE EXCEPTION 'key has % bytes; it must have 1 to 1024', octet_length(unpublish.key) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.commit_durably();
  PERFORM 1 FROM objects.buckets b WHERE b.name = unpublish.bucket FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', unpublish.bucket USING ERRCODE = 'ZO001';
  END IF;
  SELECT * INTO rule FROM objects.rule_of(unpublish.bucket, unpublish.key);
  needed := CASE WHEN rule.mode = 'none' THEN '' ELSE objects.resource_of(unpublish.bucket, rule.depth, unpublish.key) END;
  v := CASE WHEN rule.mode = 'none' THEN fence.verify_settings(NULL) ELSE objects.verify_presented(needed, rule.mode) END;
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  PERFORM objects.lock_current(unpublish.bucket, unpublish.key);
  PERFORM objects.lock_pointer(unpublish.bucket, unpublish.key, objects.wanted_etag(unpublish.if_match), false);
  INSERT INTO objects.versions (id, bucket, key, deletion, blobs, blob_sizes, size, etag, resource, token, holder)
  VALUES (gen_random_uuid(), unpublish.bucket, unpublish.key, true, '{}', '{}', 0, '', needed, CASE WHEN needed = '' THEN 0 ELSE v.token END,
          objects.holder_of(needed)) RETURNING * INTO made;
  DELETE FROM objects.pointers p WHERE p.bucket = unpublish.bucket AND p.key = unpublish.key RETURNING * INTO old;
  PERFORM objects.retire(made.bucket, old.version);
  PERFORM objects.retire(made.bucket, made.id);   -- after what it deletes
  RETURN old.version IS NOT NULL;
END $$;

REVOKE ALL ON FUNCTION objects.wanted_etag FROM PUBLIC;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 46';
