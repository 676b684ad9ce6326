-- Signatures that a newer one has replaced. A signature that gateways or users call never changes: a new one is added beside it,
-- and the old one moves here for one release, so that the previous gateway works during an upgrade. The release after that drops
-- it here (DROP FUNCTION IF EXISTS ...), and raises min_program in manifest.txt if that ends an older program.

-- Gateways of revision 3 repeat these without an id: an ended grant then refuses what they have done.
CREATE OR REPLACE FUNCTION objects.remove_version_if(
  p_bucket text, p_key text, p_version uuid, p_resource text, p_token bigint, p_seal bytea, p_if_match text, p_size bigint, p_modified timestamptz
) RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT objects.remove_version_if(p_bucket, p_key, p_version, p_resource, p_token, p_seal, NULL, p_if_match, p_size, p_modified)
$$;
REVOKE ALL ON FUNCTION objects.remove_version_if(text, text, uuid, text, bigint, bytea, text, bigint, timestamp with time zone) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.remove_version_if(text, text, uuid, text, bigint, bytea, text, bigint, timestamp with time zone) TO fence_gateway;

CREATE OR REPLACE FUNCTION objects.begin_multipart(p_upload uuid, p_bucket text, p_key text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_multipart(p_upload, p_bucket, p_key, p_attributes, p_resource, p_token, p_seal, NULL);
END $$;
REVOKE ALL ON FUNCTION objects.begin_multipart(uuid, text, text, jsonb, text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.begin_multipart(uuid, text, text, jsonb, text, bigint, bytea) TO fence_gateway;

CREATE OR REPLACE FUNCTION objects.put_part(
  p_upload uuid, p_bucket text, p_key text, p_number integer, p_blob uuid, p_size bigint, p_etag text, p_algorithm text, p_checksum text,
  p_resource text, p_token bigint, p_seal bytea
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.put_part(p_upload, p_bucket, p_key, p_number, p_blob, p_size, p_etag, p_algorithm, p_checksum, p_resource, p_token, p_seal, NULL);
END $$;
REVOKE ALL ON FUNCTION objects.put_part(uuid, text, text, integer, uuid, bigint, text, text, text, text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.put_part(uuid, text, text, integer, uuid, bigint, text, text, text, text, bigint, bytea) TO fence_gateway;

CREATE OR REPLACE FUNCTION objects.completed_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea)
RETURNS objects.versions LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT objects.completed_multipart(p_upload, p_bucket, p_key, p_resource, p_token, p_seal, NULL)
$$;
REVOKE ALL ON FUNCTION objects.completed_multipart(uuid, text, text, text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.completed_multipart(uuid, text, text, text, bigint, bytea) TO fence_gateway;

CREATE OR REPLACE FUNCTION objects.abort_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS uuid[]
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT objects.abort_multipart(p_upload, p_bucket, p_key, p_resource, p_token, p_seal, NULL)
$$;
REVOKE ALL ON FUNCTION objects.abort_multipart(uuid, text, text, text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.abort_multipart(uuid, text, text, text, bigint, bytea) TO fence_gateway;

-- Gateways of revision 4 repeat this without an id: an ended grant then refuses what they have staged.
CREATE OR REPLACE FUNCTION objects.stage_upload(
  p_stage uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_if_match text, p_if_none_match boolean
) RETURNS objects.stages LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made objects.stages;
BEGIN
  PERFORM objects.stage_upload(p_stage, p_bucket, p_key, p_blobs, p_blob_sizes, p_etag, p_attributes, p_resource, p_token, p_seal,
                               p_if_match, p_if_none_match, NULL);
  SELECT * INTO made FROM objects.stages s WHERE s.id = p_stage;
  RETURN made;
END $$;
REVOKE ALL ON FUNCTION objects.stage_upload(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.stage_upload(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, boolean) TO fence_gateway;

-- Gateways of revision 9 ask this.
CREATE OR REPLACE FUNCTION objects.was_done(p_bucket text, p_key text, p_invocation text, p_what text, OUT done boolean, OUT version uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  result CONSTANT jsonb := objects.earlier_result(p_bucket, p_key, p_invocation, p_what);
BEGIN
  done := result IS NOT NULL;
  version := coalesce(result ->> 'version', result ->> 'stage')::uuid;
END $$;
REVOKE ALL ON FUNCTION objects.was_done(text, text, text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.was_done(text, text, text, text) TO fence_gateway;

-- Gateways of revision 9 call this.
CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN objects.condemn(p_pending, p_superseded, p_limit, p_dry, false);
END $$;
REVOKE ALL ON FUNCTION objects.condemn(interval, interval, integer, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.condemn(interval, interval, integer, boolean) TO fence_gateway;
