-- Documents that root keeps with a bucket: what browsers of other origins may do, tags, who owns what is written, what must never
-- become public. The gateway checks a document before it stores it, and reads it whole.
SET ROLE fence_owner;

CREATE TABLE objects.bucket_documents (
  bucket   text COLLATE "C" NOT NULL REFERENCES objects.buckets ON DELETE CASCADE,
  kind     text NOT NULL CHECK (kind IN ('cors', 'tagging', 'ownership', 'public-access')),
  document text NOT NULL CHECK (octet_length(document) BETWEEN 1 AND 65536),
  PRIMARY KEY (bucket, kind)
);
GRANT SELECT ON objects.bucket_documents TO fence_gateway;

-- Stores a document in place of the one of its kind; NULL removes it. It may be repeated. ZO001 where there is no such bucket.
CREATE FUNCTION objects.set_bucket_document(p_bucket text, p_kind text, p_document text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR KEY SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  IF p_document IS NULL THEN
    DELETE FROM objects.bucket_documents WHERE bucket = p_bucket AND kind = p_kind;
    RETURN;
  END IF;
  INSERT INTO objects.bucket_documents (bucket, kind, document) VALUES (p_bucket, p_kind, p_document)
  ON CONFLICT (bucket, kind) DO UPDATE SET document = excluded.document;
END $$;
REVOKE ALL ON FUNCTION objects.set_bucket_document FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.set_bucket_document TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 41';
