-- Multipart uploads: each part is a blob of its own, pending until the upload is completed. Completing is the same commit as
-- that of a plain upload, with several blobs; the upload's id becomes the version's.
--
--   ZO008 no such upload (it was completed, aborted, or never was)

SET ROLE fence_owner;

CREATE TABLE objects.uploads (
  id         uuid PRIMARY KEY,
  bucket     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  attributes jsonb NOT NULL,
  resource   text NOT NULL,          -- the grant that began it; each later step presents its own
  token      bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX uploads_in_order ON objects.uploads (bucket, key, id);

CREATE TABLE objects.parts (
  upload             uuid NOT NULL REFERENCES objects.uploads ON DELETE CASCADE,
  number             integer NOT NULL CHECK (number BETWEEN 1 AND 10000),
  blob               uuid NOT NULL UNIQUE,     -- the sweep leaves it alone as long as it is listed here
  size               bigint NOT NULL,
  etag               text NOT NULL,
  checksum_algorithm text NOT NULL,
  checksum           text NOT NULL,
  changed_at         timestamptz NOT NULL DEFAULT pg_catalog.now(),
  PRIMARY KEY (upload, number)
);
GRANT SELECT ON objects.uploads, objects.parts TO fence_gateway;

CREATE FUNCTION objects.begin_multipart(p_upload uuid, p_bucket text, p_key text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  INSERT INTO objects.uploads (id, bucket, key, attributes, resource, token)
  VALUES (p_upload, p_bucket, p_key, p_attributes, p_resource, p_token) ON CONFLICT DO NOTHING;   -- it may be repeated
END $$;

-- Adds a part whose blob is complete; a part of that number that was there is given up.
CREATE FUNCTION objects.put_part(
  p_upload uuid, p_bucket text, p_key text, p_number integer, p_blob uuid, p_size bigint, p_etag text, p_algorithm text, p_checksum text,
  p_resource text, p_token bigint, p_seal bytea
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.uploads WHERE id = p_upload AND bucket = p_bucket AND key = p_key FOR SHARE;
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
END $$;

-- Completes an upload. The listed blobs become the object; the parts that are not listed are given up. Repeating it gives the
-- first answer.
CREATE FUNCTION objects.complete_multipart(
  p_upload uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v objects.versions;
BEGIN
  PERFORM 1 FROM objects.uploads WHERE id = p_upload AND bucket = p_bucket AND key = p_key FOR UPDATE;
  IF NOT FOUND AND NOT EXISTS (SELECT FROM objects.versions WHERE id = p_upload AND bucket = p_bucket AND key = p_key) THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  v := objects.commit_upload(p_upload, p_bucket, p_key, p_blobs, p_blob_sizes, p_etag, p_attributes, p_resource, p_token, p_seal,
                             p_invocation, p_if_match, p_if_none_match);
  PERFORM objects.drop_multipart(p_upload);
  RETURN v;
END $$;

-- The version that an upload became, for whoever repeats its completion: the grant that completed it, as the gateway
-- authenticated it, or else the current one.
CREATE FUNCTION objects.completed_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea)
RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v objects.versions;
BEGIN
  SELECT * INTO v FROM objects.versions WHERE id = p_upload AND bucket = p_bucket AND key = p_key;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  IF p_seal IS NOT NULL OR v.resource <> p_resource OR v.token <> p_token THEN
    PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  END IF;
  RETURN v;
END $$;

-- Forgets an upload and gives up its parts that are no object's; returns their blobs.
CREATE FUNCTION objects.drop_multipart(p_upload uuid) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone uuid[];
BEGIN
  WITH dropped AS (
    UPDATE objects.blobs b SET state = 'condemned', changed_at = now() FROM objects.parts p
     WHERE p.upload = p_upload AND b.id = p.blob AND b.state = 'pending' RETURNING b.id)
  SELECT coalesce(array_agg(id), '{}') INTO gone FROM dropped;
  DELETE FROM objects.uploads WHERE id = p_upload;
  RETURN gone;
END $$;

CREATE FUNCTION objects.abort_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.uploads WHERE id = p_upload AND bucket = p_bucket AND key = p_key FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  RETURN objects.drop_multipart(p_upload);
END $$;

REVOKE ALL ON FUNCTION objects.begin_multipart, objects.put_part, objects.complete_multipart, objects.completed_multipart, objects.drop_multipart, objects.abort_multipart FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.begin_multipart, objects.put_part, objects.complete_multipart, objects.completed_multipart,
  objects.abort_multipart TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 11';
