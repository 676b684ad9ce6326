-- Multipart uploads: each part is a blob of its own, pending until the upload is completed. Completing is the same commit as
-- that of a plain upload, with several blobs; the upload's id becomes the version's.
--
--   ZO008 no such upload (it was completed, aborted, or never was)

-- Holds a part's upload, shared, to the end of the transaction; a session that ends the upload waits for such parts. As with the
-- rules of a bucket (objects.hold_rules) the lock is an advisory one, or the row's if an unrelated session holds that one.
CREATE OR REPLACE FUNCTION objects.hold_upload(p_upload uuid) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fence.try_lock(hashtextextended(p_upload::text, 2), false) THEN
    PERFORM 1 FROM objects.uploads u WHERE u.id = p_upload FOR SHARE;
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.hold_upload(uuid) FROM PUBLIC, fence_writer, fence_gateway;

-- Locks an upload that is to end, and waits for its parts under way. Returns whether there is such an upload. Raises 55P03 after
-- 10 s.
CREATE OR REPLACE FUNCTION objects.end_upload(p_upload uuid, p_bucket text, p_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM 1 FROM objects.uploads u WHERE u.id = p_upload AND u.bucket = p_bucket AND u.key = p_key FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF NOT fence.lock_within(hashtextextended(p_upload::text, 2), true, 10000) THEN
    RAISE EXCEPTION 'the upload can''t end: its parts, or who else holds its lock, have not ended'
      USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
  END IF;
  RETURN true;
END $$;
REVOKE ALL ON FUNCTION objects.end_upload(uuid, text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Begins a multipart upload. Returns its id, or the earlier attempt's if there was one.
CREATE OR REPLACE FUNCTION objects.begin_multipart(
  p_upload uuid, p_bucket text, p_key text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done jsonb;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  done := objects.earlier_answer(p_bucket, p_key, p_invocation, 'begin an upload');
  IF done IS NOT NULL THEN
    RETURN done ->> 'upload';
  END IF;
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  INSERT INTO objects.uploads (id, bucket, key, attributes, resource, token)
  VALUES (p_upload, p_bucket, p_key, p_attributes, p_resource, p_token) ON CONFLICT DO NOTHING;   -- it may be repeated
  PERFORM objects.note_answer(p_bucket, p_key, p_invocation, 'begin an upload', jsonb_build_object('upload', p_upload));
  RETURN p_upload;
END $$;
REVOKE ALL ON FUNCTION objects.begin_multipart(uuid, text, text, jsonb, text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.begin_multipart(uuid, text, text, jsonb, text, bigint, bytea, text) TO fence_gateway;

-- Adds a part whose blob is complete; an earlier part of that number is given up. Returns the blob that stands for the request.
-- If an earlier attempt had the same content, that is its blob, and this one is given up.
CREATE OR REPLACE FUNCTION objects.put_part(
  p_upload uuid, p_bucket text, p_key text, p_number integer, p_blob uuid, p_size bigint, p_etag text, p_algorithm text, p_checksum text,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  what CONSTANT text := format('part %s of %s', p_number, replace(p_upload::text, '-', ''));   -- the gateway asks for it, too
  done jsonb;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  done := objects.earlier_answer(p_bucket, p_key, p_invocation, what);
  IF done ->> 'etag' <> p_etag THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  ELSIF done IS NOT NULL THEN
    UPDATE objects.blobs b SET state = 'condemned', changed_at = now() WHERE b.id = p_blob AND b.id <> (done ->> 'blob')::uuid AND b.state = 'pending';
    RETURN done ->> 'blob';
  END IF;
  PERFORM objects.hold_upload(p_upload);
  PERFORM 1 FROM objects.uploads WHERE id = p_upload AND bucket = p_bucket AND key = p_key;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  PERFORM 1 FROM objects.blobs WHERE id = p_blob AND state = 'pending' FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the part was given up before it was complete' USING ERRCODE = 'ZO004';
  END IF;
  LOOP
    UPDATE objects.blobs b SET state = 'condemned', changed_at = now() FROM objects.parts p
     WHERE p.upload = p_upload AND p.number = p_number AND b.id = p.blob AND b.id <> p_blob AND b.state = 'pending';
    UPDATE objects.parts SET blob = p_blob, size = p_size, etag = p_etag, checksum_algorithm = p_algorithm, checksum = p_checksum, changed_at = now()
     WHERE upload = p_upload AND number = p_number;
    EXIT WHEN FOUND;
    INSERT INTO objects.parts (upload, number, blob, size, etag, checksum_algorithm, checksum)
    VALUES (p_upload, p_number, p_blob, p_size, p_etag, p_algorithm, p_checksum) ON CONFLICT (upload, number) DO NOTHING;
    EXIT WHEN FOUND;
  END LOOP;
  PERFORM objects.note_answer(p_bucket, p_key, p_invocation, what,
    jsonb_build_object('blob', p_blob, 'etag', p_etag, 'checksum_algorithm', p_algorithm, 'checksum', p_checksum));
  RETURN p_blob;
END $$;
REVOKE ALL ON FUNCTION objects.put_part(uuid, text, text, integer, uuid, bigint, text, text, text, text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.put_part(uuid, text, text, integer, uuid, bigint, text, text, text, text, bigint, bytea, text) TO fence_gateway;

-- Deletes an upload and gives up its parts that belong to no object. Returns their blobs.
CREATE OR REPLACE FUNCTION objects.drop_multipart(p_upload uuid) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone uuid[];
BEGIN
  WITH dropped AS (
    UPDATE objects.blobs b SET state = 'condemned', changed_at = now() FROM objects.parts p
     WHERE p.upload = p_upload AND b.id = p.blob AND b.state = 'pending' RETURNING b.id)
  SELECT coalesce(array_agg(id), '{}') INTO gone FROM dropped;
  DELETE FROM objects.parts WHERE upload = p_upload;
  DELETE FROM objects.uploads WHERE id = p_upload;
  RETURN gone;
END $$;
REVOKE ALL ON FUNCTION objects.drop_multipart(uuid) FROM PUBLIC, fence_writer, fence_gateway;

-- Completes an upload. The listed blobs become the object; the parts that are not listed are given up. A repeated call returns
-- the first answer.
CREATE OR REPLACE FUNCTION objects.complete_multipart(
  p_upload uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v objects.versions;
BEGIN
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  IF NOT objects.end_upload(p_upload, p_bucket, p_key) AND NOT EXISTS (SELECT FROM objects.versions WHERE id = p_upload AND bucket = p_bucket AND key = p_key) THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  v := objects.commit_upload(p_upload, p_bucket, p_key, p_blobs, p_blob_sizes, p_etag, p_attributes, p_resource, p_token, p_seal,
                             p_invocation, p_if_match, p_if_none_match);
  PERFORM objects.drop_multipart(p_upload);
  RETURN v;
END $$;
REVOKE ALL ON FUNCTION objects.complete_multipart(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.complete_multipart(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, text, boolean) TO fence_gateway;

-- Returns the version that an upload became, to a caller that repeats its completion: by the same request, by the grant that
-- completed it, as the gateway authenticated it, or else by the current grant. The answer must be durable; see attempts.sql.
CREATE OR REPLACE FUNCTION objects.completed_multipart(
  p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v objects.versions;
BEGIN
  PERFORM objects.begin_change();
  SELECT * INTO v FROM objects.versions WHERE id = p_upload AND bucket = p_bucket AND key = p_key;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  IF v.invocation_id IS DISTINCT FROM p_invocation OR p_invocation IS NULL THEN
    IF p_seal IS NOT NULL OR v.resource <> p_resource OR v.token <> p_token THEN
      PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    END IF;
  END IF;
  PERFORM objects.answer_lasts();
  RETURN v;
END $$;
REVOKE ALL ON FUNCTION objects.completed_multipart(uuid, text, text, text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.completed_multipart(uuid, text, text, text, bigint, bytea, text) TO fence_gateway;

-- Gives up a multipart upload. Returns the blobs of its parts; none if an earlier attempt has given it up.
CREATE OR REPLACE FUNCTION objects.abort_multipart(
  p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text
) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  what CONSTANT text := 'abort ' || p_upload;
  gone uuid[];
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  IF objects.earlier_answer(p_bucket, p_key, p_invocation, what) IS NOT NULL THEN
    RETURN '{}';
  END IF;
  IF NOT objects.end_upload(p_upload, p_bucket, p_key) THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  gone := objects.drop_multipart(p_upload);
  PERFORM objects.note_answer(p_bucket, p_key, p_invocation, what, '{}');
  RETURN gone;
END $$;
REVOKE ALL ON FUNCTION objects.abort_multipart(uuid, text, text, text, bigint, bytea, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.abort_multipart(uuid, text, text, text, bigint, bytea, text) TO fence_gateway;
