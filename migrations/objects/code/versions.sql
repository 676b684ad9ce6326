-- Older versions of objects: how many or how long they are kept, listing, restoring and removing them, and the writer of each.
--
-- A version is current (a pointer names it), kept (kept_order says since which change), or gone: then its blobs are superseded,
-- and only the row is left, which says who wrote it. Restoring an older version makes a new one that lists the same blobs, so no
-- bytes move. Versions that share blobs have one origin, the version that first listed them; a blob is live as long as a version
-- of its origin is current or kept. A function that changes that locks the blobs' rows first and then reads.
--
-- Lock order: pointer, versions, blobs of older versions.

-- Checks that a version is what a deletion expects; NULL expects nothing. Times are compared in whole seconds, as in HTTP.
CREATE OR REPLACE FUNCTION objects.check_expected(v objects.versions, p_if_match text, p_size bigint, p_modified timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  other text := CASE WHEN v.deletion AND (p_size IS NOT NULL OR p_modified IS NOT NULL OR p_if_match IS NOT NULL) THEN 'If-Match'
                     WHEN p_if_match <> '*' AND p_if_match <> v.etag THEN 'If-Match'
                     WHEN p_size <> v.size THEN 'x-amz-if-match-size'
                     WHEN date_trunc('second', p_modified) <> date_trunc('second', v.created_at) THEN 'x-amz-if-match-last-modified-time' END;
BEGIN
  IF other IS NOT NULL THEN
    RAISE EXCEPTION 'the object is not the one that is to be deleted' USING ERRCODE = 'ZO002', DETAIL = other;
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.check_expected(objects.versions, text, bigint, timestamp with time zone) FROM PUBLIC, fence_writer, fence_gateway;

-- Deletes a key: the fence check and the removal of the pointer in one transaction. Deleting a key that does not exist succeeds.
-- Returns the deletion's own version, which is kept if the bucket keeps versions. A repeated call behaves as in
-- objects.commit_upload. p_size and p_modified as in objects.check_expected.
CREATE OR REPLACE FUNCTION objects.delete_key(
  p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text,
  p_size bigint, p_modified timestamptz
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  old objects.pointers;
  removed objects.versions;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  -- Serialises the attempts of one deletion, as the blobs' rows do for an upload. No other client knows the id beforehand.
  PERFORM fence.lock(hashtextextended(p_version::text, 0));
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    INSERT INTO objects.versions (id, bucket, key, deletion, blobs, blob_sizes, size, etag, resource, token, holder, invocation_id)
    VALUES (p_version, p_bucket, p_key, true, '{}', '{}', 0, '', p_resource, p_token, objects.holder_of(p_resource), p_invocation)
    ON CONFLICT DO NOTHING RETURNING * INTO done;
    IF FOUND THEN
      PERFORM objects.lock_pointer(p_bucket, p_key, p_if_match, false);
      -- If there was no pointer to lock, one may have appeared in between.
      DELETE FROM objects.pointers WHERE bucket = p_bucket AND key = p_key RETURNING * INTO old;
      IF p_size IS NOT NULL OR p_modified IS NOT NULL THEN
        SELECT * INTO removed FROM objects.versions v WHERE v.id = old.version;
        PERFORM objects.check_expected(removed, NULL, p_size, p_modified);
      END IF;
      PERFORM objects.retire(p_bucket, old.version);
      PERFORM objects.retire(p_bucket, done.id);   -- after the rows that it deletes
      SELECT * INTO done FROM objects.versions v WHERE v.id = p_version;
      RETURN done;
    END IF;
    done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  END IF;
  IF NOT done.deletion THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  END IF;
  RETURN done;
END $$;
REVOKE ALL ON FUNCTION objects.delete_key(uuid, text, text, text, bigint, bytea, text, text, bigint, timestamp with time zone) FROM PUBLIC, fence_writer, fence_gateway;

-- objects.delete_key without conditions on the size and the time.
CREATE OR REPLACE FUNCTION objects.commit_deletion(
  p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN objects.delete_key(p_version, p_bucket, p_key, p_resource, p_token, p_seal, p_invocation, p_if_match, NULL, NULL);
END $$;
REVOKE ALL ON FUNCTION objects.commit_deletion(uuid, text, text, text, bigint, bytea, text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.commit_deletion(uuid, text, text, text, bigint, bytea, text, text) TO fence_gateway;

-- Deletes a key, with conditions on the deleted version. A key that does not exist meets them: there is nothing to delete. A
-- deletion that hides the key does not.
CREATE OR REPLACE FUNCTION objects.commit_deletion_if(
  p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text,
  p_size bigint, p_modified timestamptz
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur objects.pointers;
  v objects.versions;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  PERFORM fence.lock(hashtextextended(p_version::text, 0));   -- as in objects.delete_key
  v := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF v.id IS NULL THEN
    PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    cur := objects.lock_pointer(p_bucket, p_key, NULL, false);
    IF cur.version IS NOT NULL THEN
      SELECT * INTO v FROM objects.versions x WHERE x.id = cur.version;
    ELSE   -- the deletion that hides the key, if it is kept
      SELECT * INTO v FROM objects.versions x
       WHERE x.bucket = p_bucket AND x.key = p_key AND x.kept_order IS NOT NULL ORDER BY x.kept_order DESC LIMIT 1;
    END IF;
    PERFORM objects.check_expected(v, NULL, p_size, p_modified);
  END IF;
  RETURN objects.delete_key(p_version, p_bucket, p_key, p_resource, p_token, p_seal, p_invocation, p_if_match, p_size, p_modified);
END $$;
REVOKE ALL ON FUNCTION objects.commit_deletion_if(uuid, text, text, text, bigint, bytea, text, text, bigint, timestamp with time zone) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.commit_deletion_if(uuid, text, text, text, bigint, bytea, text, text, bigint, timestamp with time zone) TO fence_gateway;

-- Makes an older version current again: a new version that lists the same blobs, under the restoring caller's grant. Any version
-- will do whose blobs all exist, also one that was superseded within the sweep's grace. A repeated call behaves as in
-- objects.commit_upload.
CREATE OR REPLACE FUNCTION objects.restore_version(
  p_version uuid, p_bucket text, p_key text, p_source uuid, p_resource text, p_token bigint, p_seal bytea, p_invocation text,
  p_if_match text, p_if_none_match boolean
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  src objects.versions;
  n integer;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  PERFORM fence.lock(hashtextextended(p_version::text, 0));
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    PERFORM 1 FROM objects.pointers WHERE bucket = p_bucket AND key = p_key FOR UPDATE;
    SELECT * INTO src FROM objects.versions v
     WHERE v.id = p_source AND v.bucket = p_bucket AND v.key = p_key AND NOT v.deletion AND v.removed_at IS NULL FOR UPDATE;
    -- A session that condemns a blob locks its row, so the blob exists until this is committed, and is live from then on.
    PERFORM 1 FROM objects.blobs b WHERE b.id = ANY (src.blobs) ORDER BY b.id FOR UPDATE;
    UPDATE objects.blobs b SET state = 'live', changed_at = now() WHERE b.id = ANY (src.blobs) AND b.state IN ('live', 'superseded');
    GET DIAGNOSTICS n = ROW_COUNT;
    IF src.id IS NULL OR n <> cardinality(src.blobs) THEN
      RAISE EXCEPTION 'version % of object % in bucket % is not there any more', p_source, p_key, p_bucket USING ERRCODE = 'ZO009';
    END IF;
    INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, holder, origin, invocation_id)
    VALUES (p_version, p_bucket, p_key, src.blobs, src.blob_sizes, src.size, src.etag, src.attributes,
            p_resource, p_token, objects.holder_of(p_resource), coalesce(src.origin, src.id), p_invocation)
    ON CONFLICT DO NOTHING RETURNING * INTO done;
    IF FOUND THEN
      PERFORM objects.make_current(done, p_if_match, p_if_none_match);
      RETURN done;
    END IF;
    done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  END IF;
  IF done.deletion THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  END IF;
  RETURN done;
END $$;
REVOKE ALL ON FUNCTION objects.restore_version(uuid, text, text, uuid, text, bigint, bytea, text, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.restore_version(uuid, text, text, uuid, text, bigint, bytea, text, text, boolean) TO fence_gateway;

-- Removes one version, current or kept. If it was the newest, the next older one becomes current, unless that is a deletion.
-- Returns whether the removed version was a deletion; NULL: there is no such version, or no longer.
CREATE OR REPLACE FUNCTION objects.remove_version(p_bucket text, p_key text, p_version uuid, p_resource text, p_token bigint, p_seal bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur objects.pointers;
  v objects.versions;
  newest objects.versions;
BEGIN
  PERFORM objects.begin_change();
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  cur := objects.lock_pointer(p_bucket, p_key, NULL, false);
  SELECT * INTO v FROM objects.versions x WHERE x.id = p_version AND x.bucket = p_bucket AND x.key = p_key FOR UPDATE;
  IF v.id IS NULL OR v.kept_order IS NULL AND v.id IS DISTINCT FROM cur.version THEN
    RETURN NULL;
  END IF;
  PERFORM objects.check_retained(p_bucket, p_version);
  UPDATE objects.versions x SET kept_order = NULL, kept_at = NULL, removed_by = objects.holder_of(p_resource), removed_with = p_token,
         removed_under = p_resource, removed_at = now()
   WHERE x.id = p_version;
  DELETE FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key AND p.version = p_version;
  IF cur.version IS NULL OR cur.version = p_version THEN
    SELECT * INTO newest FROM objects.versions x
     WHERE x.bucket = p_bucket AND x.key = p_key AND x.kept_order IS NOT NULL ORDER BY x.kept_order DESC LIMIT 1 FOR UPDATE;
    IF NOT newest.deletion AND (cur.version = p_version OR newest.kept_order < v.kept_order) THEN
      INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
      VALUES (p_bucket, p_key, newest.id, newest.size, newest.etag, newest.created_at) ON CONFLICT DO NOTHING;
      IF FOUND THEN   -- otherwise another writer has just written the key
        UPDATE objects.versions x SET kept_order = NULL, kept_at = NULL WHERE x.id = newest.id;
      END IF;
    END IF;
  END IF;
  PERFORM objects.supersede(p_version);
  RETURN v.deletion;
END $$;
REVOKE ALL ON FUNCTION objects.remove_version(text, text, uuid, text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.remove_version(text, text, uuid, text, bigint, bytea) TO fence_gateway;

-- objects.remove_version with conditions on the version, once. Removing a version that this grant has removed already succeeds,
-- too: a request without an id gets that answer. Nothing distinguishes a caller with a superseded seal from another caller, except root,
-- which may ask anyhow.
CREATE OR REPLACE FUNCTION objects.remove_version_if(
  p_bucket text, p_key text, p_version uuid, p_resource text, p_token bigint, p_seal bytea, p_invocation text,
  p_if_match text, p_size bigint, p_modified timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  what CONSTANT text := 'remove ' || p_version;
  done jsonb;
  cur objects.pointers;
  v objects.versions;
  deletion boolean;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, what);
  done := objects.earlier_answer(p_bucket, p_key, p_invocation, what);
  IF done IS NULL THEN
    SELECT jsonb_build_object('deletion', x.deletion) INTO done FROM objects.versions x
     WHERE x.id = p_version AND x.bucket = p_bucket AND x.key = p_key AND x.removed_at IS NOT NULL AND x.removed_with = p_token
       AND x.removed_under = p_resource;
    IF FOUND THEN
      PERFORM objects.answer_lasts();
    END IF;
  END IF;
  IF done IS NOT NULL THEN
    RETURN done ->> 'deletion';
  END IF;
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  cur := objects.lock_pointer(p_bucket, p_key, NULL, false);
  SELECT * INTO v FROM objects.versions x WHERE x.id = p_version AND x.bucket = p_bucket AND x.key = p_key FOR UPDATE;
  IF v.kept_order IS NOT NULL OR v.id = cur.version THEN
    PERFORM objects.check_expected(v, p_if_match, p_size, p_modified);
  END IF;
  deletion := objects.remove_version(p_bucket, p_key, p_version, p_resource, p_token, p_seal);
  IF deletion IS NOT NULL THEN
    PERFORM objects.note_answer(p_bucket, p_key, p_invocation, what, jsonb_build_object('deletion', deletion));
  END IF;
  RETURN deletion;
END $$;
REVOKE ALL ON FUNCTION objects.remove_version_if(text, text, uuid, text, bigint, bytea, text, text, bigint, timestamp with time zone) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.remove_version_if(text, text, uuid, text, bigint, bytea, text, text, bigint, timestamp with time zone) TO fence_gateway;
