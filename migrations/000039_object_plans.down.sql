SET ROLE fence_owner;

CREATE OR REPLACE FUNCTION objects.rule_of(p_bucket text, p_key text, OUT depth integer, OUT mode text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(r.depth, b.depth), coalesce(r.mode, b.mode)
    FROM objects.buckets b LEFT JOIN LATERAL (
      SELECT x.depth, x.mode FROM objects.prefix_rules x
       WHERE x.bucket = b.name AND starts_with(p_key, x.prefix) ORDER BY length(x.prefix) DESC LIMIT 1) r ON true
   WHERE b.name = p_bucket
$$;

CREATE OR REPLACE FUNCTION objects.keeps(p_bucket text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT b.keep_count IS DISTINCT FROM 0 FROM objects.buckets b WHERE b.name = p_bucket), false)
$$;

CREATE OR REPLACE FUNCTION objects.is_named(p_origin uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM objects.versions v
                  WHERE v.id IN (SELECT p_origin UNION ALL SELECT o.id FROM objects.versions o WHERE o.origin = p_origin)
                    AND (v.kept_order IS NOT NULL
                         OR EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id)))
$$;

CREATE OR REPLACE FUNCTION objects.holder_of(p_resource text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT f.holder FROM fence.resources f WHERE f.resource = p_resource), '')
$$;

CREATE OR REPLACE FUNCTION objects.earlier_attempt(p_bucket text, p_key text, p_version uuid, p_invocation text) RETURNS objects.versions
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT v.* FROM objects.versions v WHERE v.id = p_version
  UNION ALL
  SELECT v.* FROM objects.versions v WHERE v.bucket = p_bucket AND v.key = p_key AND v.invocation_id = p_invocation
  LIMIT 1
$$;

CREATE OR REPLACE FUNCTION objects.resource_of(p_bucket text, p_depth integer, p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN p_depth = 0 THEN p_bucket
              WHEN p_depth < 0 THEN p_bucket || '/' || p_key
              ELSE p_bucket || '/' || array_to_string((string_to_array(p_key, '/'))[1:p_depth], '/') END
$$;

CREATE OR REPLACE FUNCTION fence.resource_fault(p_resource text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN coalesce(p_resource, '') = '' THEN 'is empty'
    WHEN pg_catalog.octet_length(p_resource) > 512
      THEN pg_catalog.format('is %s bytes long; at most 512 are allowed', pg_catalog.octet_length(p_resource))
    WHEN p_resource COLLATE "C" ~ concat('[', chr(1), '-', chr(31), chr(127), '-', chr(159), ']') THEN 'contains a control character'
    WHEN pg_catalog.strpos(p_resource, '*') > 0 THEN 'contains ''*'', which is kept for patterns'
  END
$$;

CREATE OR REPLACE FUNCTION objects.begin_upload(p_blob uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  INSERT INTO objects.blobs (id) VALUES (p_blob) ON CONFLICT DO NOTHING;   -- it may be repeated
END $$;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 38';
