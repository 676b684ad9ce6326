-- Conditions that S3 knows beside If-Match and If-None-Match: *.
SET ROLE fence_owner;

-- As before, and p_if_match may be '!' and an ETag: the current version must not have it, and need not be there.
CREATE OR REPLACE FUNCTION objects.lock_pointer(p_bucket text, p_key text, p_if_match text, p_if_none_match boolean) RETURNS objects.pointers
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur objects.pointers;
BEGIN
  SELECT * INTO cur FROM objects.pointers WHERE bucket = p_bucket AND key = p_key FOR UPDATE;
  IF starts_with(p_if_match, '!') THEN
    IF substr(p_if_match, 2) = cur.etag THEN
      RAISE EXCEPTION 'the object has that ETag' USING ERRCODE = 'ZO002', DETAIL = 'If-None-Match';
    END IF;
    RETURN cur;
  END IF;
  IF p_if_match IS NOT NULL AND cur.version IS NULL THEN
    RAISE EXCEPTION 'there is no object % in bucket %', p_key, p_bucket USING ERRCODE = 'ZO003';
  END IF;
  IF p_if_match <> '*' AND p_if_match <> cur.etag THEN
    RAISE EXCEPTION 'the object has another ETag' USING ERRCODE = 'ZO002', DETAIL = 'If-Match';
  END IF;
  IF p_if_none_match AND cur.version IS NOT NULL THEN
    RAISE EXCEPTION 'the object exists already' USING ERRCODE = 'ZO002', DETAIL = 'If-None-Match';
  END IF;
  RETURN cur;
END $$;

-- Whether a version is what a deletion expects; NULL expects nothing. Times count in whole seconds, as HTTP has them.
CREATE FUNCTION objects.check_expected(v objects.versions, p_if_match text, p_size bigint, p_modified timestamptz) RETURNS void
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

-- objects.commit_deletion with expectations of what is deleted. A key that is not there meets them: there is nothing to delete.
CREATE FUNCTION objects.commit_deletion_if(
  p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text,
  p_size bigint, p_modified timestamptz
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur objects.pointers;
  v objects.versions;
BEGIN
  PERFORM objects.begin_change();
  PERFORM pg_advisory_xact_lock(hashtextextended(p_version::text, 0));   -- as objects.commit_deletion does
  v := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF v.id IS NULL THEN
    PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    cur := objects.lock_pointer(p_bucket, p_key, NULL, false);
    IF cur.version IS NOT NULL THEN
      SELECT * INTO v FROM objects.versions x WHERE x.id = cur.version;
    ELSE   -- the deletion that hides the key, where it is kept
      SELECT * INTO v FROM objects.versions x
       WHERE x.bucket = p_bucket AND x.key = p_key AND x.kept_order IS NOT NULL ORDER BY x.kept_order DESC LIMIT 1;
    END IF;
    PERFORM objects.check_expected(v, NULL, p_size, p_modified);
  END IF;
  RETURN objects.commit_deletion(p_version, p_bucket, p_key, p_resource, p_token, p_seal, p_invocation, p_if_match);
END $$;

-- objects.remove_version with expectations of the version.
CREATE FUNCTION objects.remove_version_if(
  p_bucket text, p_key text, p_version uuid, p_resource text, p_token bigint, p_seal bytea, p_if_match text, p_size bigint, p_modified timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur objects.pointers;
  v objects.versions;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  cur := objects.lock_pointer(p_bucket, p_key, NULL, false);
  SELECT * INTO v FROM objects.versions x WHERE x.id = p_version AND x.bucket = p_bucket AND x.key = p_key FOR UPDATE;
  IF v.kept_order IS NOT NULL OR v.id = cur.version THEN
    PERFORM objects.check_expected(v, p_if_match, p_size, p_modified);
  END IF;
  RETURN objects.remove_version(p_bucket, p_key, p_version, p_resource, p_token, p_seal);
END $$;

REVOKE ALL ON FUNCTION objects.check_expected, objects.commit_deletion_if, objects.remove_version_if FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.commit_deletion_if, objects.remove_version_if TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 38';
