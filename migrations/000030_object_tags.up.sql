-- Tags of objects, and the uploads under way listed as folders.
--
-- Tags lie among a version's attributes. Changing them makes no version, as in S3, but it is a fenced write: each change is a row
-- of its own here, with its token, which is also how a late attempt of an earlier change is recognised.
--
--   ZO009 no such version of the key

SET ROLE fence_owner;

CREATE TABLE objects.taggings (
  id            uuid PRIMARY KEY,
  version       uuid NOT NULL REFERENCES objects.versions ON DELETE CASCADE,
  bucket        text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  tags          jsonb NOT NULL,
  resource      text NOT NULL,
  token         bigint NOT NULL,
  invocation_id text,
  created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX taggings_of_version ON objects.taggings (version);
CREATE UNIQUE INDEX taggings_once ON objects.taggings (bucket, key, invocation_id) WHERE invocation_id IS NOT NULL;
GRANT SELECT ON objects.taggings TO fence_gateway;

-- Gives a version of a key, by default the current one, other tags: the fence check and the change in one transaction. Returns
-- the version. Repeating it is as with objects.commit_upload.
CREATE FUNCTION objects.put_tags(
  p_change uuid, p_bucket text, p_key text, p_version uuid, p_tags jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur uuid;
  done uuid;
BEGIN
  PERFORM objects.begin_change();
  -- Serialises the tries of one change. Nobody else knows the id beforehand.
  PERFORM pg_advisory_xact_lock(hashtextextended(p_change::text, 0));
  SELECT t.version INTO done FROM objects.taggings t
   WHERE t.id = p_change OR t.bucket = p_bucket AND t.key = p_key AND t.invocation_id = p_invocation LIMIT 1;
  IF FOUND THEN
    RETURN done;
  END IF;
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  SELECT p.version INTO cur FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key FOR SHARE;
  IF p_version IS NULL AND cur IS NULL THEN
    RAISE EXCEPTION 'there is no object % in bucket %', p_key, p_bucket USING ERRCODE = 'ZO003';
  ELSIF p_version <> cur OR cur IS NULL THEN
    RAISE EXCEPTION 'there is no version % of object % in bucket %', p_version, p_key, p_bucket USING ERRCODE = 'ZO009';
  END IF;
  INSERT INTO objects.taggings (id, version, bucket, key, tags, resource, token, invocation_id)
  VALUES (p_change, cur, p_bucket, p_key, p_tags, p_resource, p_token, p_invocation) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN   -- another attempt was committed between the look and the INSERT
    SELECT t.version INTO STRICT done FROM objects.taggings t
     WHERE t.bucket = p_bucket AND t.key = p_key AND t.invocation_id = p_invocation;
    RETURN done;
  END IF;
  UPDATE objects.versions v
     SET attributes = CASE WHEN p_tags = '{}' THEN v.attributes - 'tags' ELSE jsonb_set(v.attributes, '{tags}', p_tags) END
   WHERE v.id = cur;
  RETURN cur;
END $$;

-- Lists the uploads under way above (p_after_key, p_after_id) in the order of their keys' bytes and of their beginning, at most
-- p_limit entries; with a delimiter as objects.list does it.
CREATE FUNCTION objects.list_uploads(p_bucket text, p_prefix text, p_delimiter text, p_after_key text, p_after_id uuid, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, id uuid, created_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  none constant uuid := '00000000-0000-0000-0000-000000000000';   -- below every id
  lo text COLLATE "C" := p_prefix;
  lo_id uuid := none;
  r record;
  left_over integer := p_limit;
  cut integer := strpos(substr(p_after_key, length(p_prefix) + 1), p_delimiter);
  jumped boolean;
BEGIN
  IF p_after_key COLLATE "C" >= p_prefix AND p_after_key <> '' THEN
    lo := p_after_key;
    lo_id := p_after_id;
    IF p_delimiter <> '' AND starts_with(p_after_key, p_prefix) AND cut > 0 THEN
      -- Inside a common prefix, which was shown as one entry.
      lo := objects.prefix_end(left(p_after_key, length(p_prefix) + cut + length(p_delimiter) - 1));
      lo_id := none;
    END IF;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    jumped := false;
    FOR r IN SELECT u.key, u.id, u.created_at FROM objects.uploads u
              WHERE u.bucket = p_bucket AND (u.key, u.id) > (lo, lo_id) ORDER BY u.key, u.id LIMIT left_over LOOP
      IF NOT starts_with(r.key, p_prefix) THEN
        RETURN;
      END IF;
      cut := CASE WHEN p_delimiter = '' THEN 0 ELSE strpos(substr(r.key, length(p_prefix) + 1), p_delimiter) END;
      left_over := left_over - 1;
      IF cut > 0 THEN
        entry := left(r.key, length(p_prefix) + cut + length(p_delimiter) - 1);
        is_prefix := true; id := NULL; created_at := NULL;
        lo := objects.prefix_end(entry);
        lo_id := none;
        jumped := true;
        RETURN NEXT;
        EXIT;
      END IF;
      entry := r.key; is_prefix := false; id := r.id; created_at := r.created_at;
      RETURN NEXT;
    END LOOP;
    EXIT WHEN NOT jumped;
  END LOOP;
END $$;

REVOKE ALL ON FUNCTION objects.put_tags, objects.list_uploads FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.put_tags, objects.list_uploads TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 30';
