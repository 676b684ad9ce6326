-- Older versions are gone at once; their bytes are left to the sweep.
SET ROLE fence_owner;
UPDATE objects.blobs b SET state = 'superseded', changed_at = now()
 WHERE b.state = 'live' AND NOT EXISTS (
   SELECT FROM objects.pointers p JOIN objects.versions v ON v.id = p.version WHERE coalesce(v.origin, v.id) = b.version);
DROP FUNCTION objects.keeps, objects.is_named, objects.retire, objects.holder_of, objects.make_current, objects.commit_deletion,
  objects.restore_version, objects.remove_version, objects.set_keep, objects.list_versions, objects.prune_versions, objects.forget_deletions;

CREATE OR REPLACE FUNCTION objects.supersede(p_version uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE objects.blobs SET state = 'superseded', changed_at = now()
   WHERE id IN (SELECT unnest(v.blobs) FROM objects.versions v WHERE v.id = p_version) AND state = 'live'
$$;

CREATE OR REPLACE FUNCTION objects.commit_upload(
  p_version uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  made objects.versions;
  old objects.pointers;
  n integer;
BEGIN
  PERFORM objects.begin_change();
  -- The blobs' rows serialise the tries of one commit: a try that is still on its way in another session ends first.
  PERFORM 1 FROM objects.blobs WHERE id = ANY (p_blobs) ORDER BY id FOR UPDATE;
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, invocation_id)
    VALUES (p_version, p_bucket, p_key, p_blobs, p_blob_sizes, (SELECT sum(s) FROM unnest(p_blob_sizes) s), p_etag, p_attributes,
            p_resource, p_token, p_invocation)
    ON CONFLICT DO NOTHING RETURNING * INTO made;
    IF made.id IS NULL THEN   -- another attempt was committed between the look and the INSERT
      done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
    END IF;
  END IF;
  IF made.id IS NULL THEN
    IF done.etag <> p_etag OR done.deletion THEN
      RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
    END IF;
    UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (p_blobs) AND state = 'pending';
    RETURN done;
  END IF;

  UPDATE objects.blobs SET state = 'live', changed_at = now() WHERE id = ANY (p_blobs) AND state = 'pending';
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(p_blobs) THEN
    RAISE EXCEPTION 'the upload was given up before it was complete' USING ERRCODE = 'ZO004';
  END IF;
  LOOP
    old := objects.lock_pointer(p_bucket, p_key, p_if_match, p_if_none_match);
    IF old.version IS NOT NULL THEN
      UPDATE objects.pointers SET version = made.id, size = made.size, etag = made.etag, modified_at = made.created_at
       WHERE bucket = p_bucket AND key = p_key;
      PERFORM objects.supersede(old.version);
      RETURN made;
    END IF;
    INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
    VALUES (p_bucket, p_key, made.id, made.size, made.etag, made.created_at) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN made;
    END IF;
  END LOOP;   -- created by another writer in between: look at it
END $$;

CREATE FUNCTION objects.commit_deletion(
  p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  old objects.pointers;
BEGIN
  PERFORM objects.begin_change();
  -- Serialises the tries of one deletion, as the blobs' rows do it for an upload. Nobody else knows the id beforehand.
  PERFORM pg_advisory_xact_lock(hashtextextended(p_version::text, 0));
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    INSERT INTO objects.versions (id, bucket, key, deletion, blobs, blob_sizes, size, etag, resource, token, invocation_id)
    VALUES (p_version, p_bucket, p_key, true, '{}', '{}', 0, '', p_resource, p_token, p_invocation) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      PERFORM objects.lock_pointer(p_bucket, p_key, p_if_match, false);
      -- Where there was none to lock, one may have come in between.
      DELETE FROM objects.pointers WHERE bucket = p_bucket AND key = p_key RETURNING * INTO old;
      PERFORM objects.supersede(old.version);
      RETURN;
    END IF;
    done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  END IF;
  IF NOT done.deletion THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  END IF;
END $$;

CREATE OR REPLACE FUNCTION objects.delete_bucket(p_bucket text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket) THEN
    RAISE EXCEPTION 'bucket % is not empty', p_bucket USING ERRCODE = 'ZO005';
  END IF;
  DELETE FROM objects.buckets WHERE name = p_bucket;
END $$;

CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
BEGIN
  PERFORM objects.begin_change();
  IF NOT p_dry THEN
    DELETE FROM objects.uploads WHERE id IN (
      SELECT u.id FROM objects.uploads u WHERE u.created_at < now() - p_pending
         AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= now() - p_pending)
       LIMIT p_limit FOR UPDATE SKIP LOCKED);
  END IF;
  SELECT coalesce(array_agg(id), '{}') INTO ids FROM (
    SELECT b.id FROM objects.blobs b
     WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending OR b.state = 'superseded' AND b.changed_at < now() - p_superseded)
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     LIMIT p_limit FOR UPDATE SKIP LOCKED) due;
  IF NOT p_dry THEN
    UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  END IF;
  RETURN cardinality(ids);
END $$;

CREATE OR REPLACE FUNCTION objects.put_tags(
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
REVOKE ALL ON FUNCTION objects.commit_deletion FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.commit_deletion TO fence_gateway;

DROP INDEX objects.versions_once;
CREATE UNIQUE INDEX versions_once ON objects.versions (bucket, key, invocation_id) WHERE invocation_id IS NOT NULL;
ALTER TABLE objects.versions DROP COLUMN holder, DROP COLUMN origin, DROP COLUMN kept_order, DROP COLUMN kept_at,
  DROP COLUMN removed_by, DROP COLUMN removed_with, DROP COLUMN removed_at;
DROP SEQUENCE objects.kept_order;
ALTER TABLE objects.blobs DROP COLUMN version;
ALTER TABLE objects.buckets DROP COLUMN keep_count, DROP COLUMN keep_age;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 30';
