-- Tags of objects.
--
-- Tags are among a version's attributes. A change of tags makes no version, as in S3, but it is a fenced write: each change is a
-- row of its own here, with its token, which also recognises a late attempt of an earlier change.
--
--   ZO009 no such version of the key

-- Replaces the tags of a version of a key, current or kept, by default the current one: the fence check and the change in one
-- transaction. Returns the version. A repeated call behaves as in objects.commit_upload.
CREATE OR REPLACE FUNCTION objects.put_tags(
  p_change uuid, p_bucket text, p_key text, p_version uuid, p_tags jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur uuid;
  done uuid;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  -- Serialises the attempts of one change. No other client knows the id beforehand.
  PERFORM fence.lock(hashtextextended(p_change::text, 0));
  SELECT t.version INTO done FROM objects.taggings t
   WHERE t.id = p_change OR t.bucket = p_bucket AND t.key = p_key AND t.invocation_id = p_invocation LIMIT 1;
  IF FOUND THEN
    PERFORM objects.answer_lasts();
    RETURN done;
  END IF;
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  SELECT p.version INTO cur FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key FOR SHARE;
  IF p_version IS NULL AND cur IS NULL THEN
    RAISE EXCEPTION 'there is no object % in bucket %', p_key, p_bucket USING ERRCODE = 'ZO003';
  ELSIF p_version IS DISTINCT FROM cur AND p_version IS NOT NULL THEN
    SELECT v.id INTO cur FROM objects.versions v
     WHERE v.id = p_version AND v.bucket = p_bucket AND v.key = p_key AND v.kept_order IS NOT NULL AND NOT v.deletion FOR UPDATE;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'there is no version % of object % in bucket %', p_version, p_key, p_bucket USING ERRCODE = 'ZO009';
    END IF;
  END IF;
  PERFORM objects.check_retained(p_bucket, cur);
  INSERT INTO objects.taggings (id, version, bucket, key, tags, resource, token, invocation_id)
  VALUES (p_change, cur, p_bucket, p_key, p_tags, p_resource, p_token, p_invocation) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN   -- another attempt committed between the look and the INSERT
    SELECT t.version INTO STRICT done FROM objects.taggings t
     WHERE t.bucket = p_bucket AND t.key = p_key AND t.invocation_id = p_invocation;
    RETURN done;
  END IF;
  UPDATE objects.versions v
     SET attributes = CASE WHEN p_tags = '{}' THEN v.attributes - 'tags' ELSE jsonb_set(v.attributes, '{tags}', p_tags) END
   WHERE v.id = cur;
  RETURN cur;
END $$;
REVOKE ALL ON FUNCTION objects.put_tags(uuid, text, text, uuid, jsonb, text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.put_tags(uuid, text, text, uuid, jsonb, text, bigint, bytea, text) TO fence_gateway;
