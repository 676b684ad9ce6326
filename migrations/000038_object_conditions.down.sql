SET ROLE fence_owner;
DROP FUNCTION objects.commit_deletion_if, objects.remove_version_if, objects.check_expected;
CREATE OR REPLACE FUNCTION objects.lock_pointer(p_bucket text, p_key text, p_if_match text, p_if_none_match boolean) RETURNS objects.pointers
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur objects.pointers;
BEGIN
  SELECT * INTO cur FROM objects.pointers WHERE bucket = p_bucket AND key = p_key FOR UPDATE;
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
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 35';
