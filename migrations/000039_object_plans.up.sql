-- What a write calls of helpers, as PL/pgSQL: PostgreSQL 15 plans the statements of a function in SQL anew with each call that it
-- can't inline, and it inlines none with a search_path of its own. What they answer is as before.
SET ROLE fence_owner;

CREATE OR REPLACE FUNCTION objects.rule_of(p_bucket text, p_key text, OUT depth integer, OUT mode text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT x.depth, x.mode INTO depth, mode FROM objects.prefix_rules x
   WHERE x.bucket = p_bucket AND starts_with(p_key, x.prefix) ORDER BY length(x.prefix) DESC LIMIT 1;
  IF NOT FOUND THEN
    SELECT b.depth, b.mode INTO depth, mode FROM objects.buckets b WHERE b.name = p_bucket;
  END IF;
END $$;

CREATE OR REPLACE FUNCTION objects.keeps(p_bucket text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN coalesce((SELECT b.keep_count IS DISTINCT FROM 0 FROM objects.buckets b WHERE b.name = p_bucket), false);
END $$;

-- Two look-ups by an index each, whatever the tables' sizes were when the session planned them.
CREATE OR REPLACE FUNCTION objects.is_named(p_origin uuid) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM objects.versions v
                  WHERE v.id = p_origin
                    AND (v.kept_order IS NOT NULL
                         OR EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id)))
      OR EXISTS (SELECT FROM objects.versions v
                  WHERE v.origin = p_origin
                    AND (v.kept_order IS NOT NULL
                         OR EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id)));
END $$;

CREATE OR REPLACE FUNCTION objects.holder_of(p_resource text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN coalesce((SELECT f.holder FROM fence.resources f WHERE f.resource = p_resource), '');
END $$;

CREATE OR REPLACE FUNCTION objects.earlier_attempt(p_bucket text, p_key text, p_version uuid, p_invocation text) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
BEGIN
  SELECT v.* INTO done FROM objects.versions v WHERE v.id = p_version;
  IF NOT FOUND AND p_invocation IS NOT NULL THEN
    SELECT v.* INTO done FROM objects.versions v WHERE v.bucket = p_bucket AND v.key = p_key AND v.invocation_id = p_invocation;
  END IF;
  RETURN done;
END $$;

CREATE OR REPLACE FUNCTION objects.resource_of(p_bucket text, p_depth integer, p_key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN CASE WHEN p_depth = 0 THEN p_bucket
              WHEN p_depth < 0 THEN p_bucket || '/' || p_key
              ELSE p_bucket || '/' || array_to_string((string_to_array(p_key, '/'))[1:p_depth], '/') END;
END $$;

CREATE OR REPLACE FUNCTION fence.resource_fault(p_resource text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN CASE
    WHEN coalesce(p_resource, '') = '' THEN 'is empty'
    WHEN pg_catalog.octet_length(p_resource) > 512
      THEN pg_catalog.format('is %s bytes long; at most 512 are allowed', pg_catalog.octet_length(p_resource))
    WHEN p_resource COLLATE "C" ~ concat('[', chr(1), '-', chr(31), chr(127), '-', chr(159), ']') THEN 'contains a control character'
    WHEN pg_catalog.strpos(p_resource, '*') > 0 THEN 'contains ''*'', which is kept for patterns'
  END;
END $$;

-- As before, but nobody waits until the announcement is on disk. Where PostgreSQL loses it in a crash the commit refuses the
-- upload (ZO004), and the sweep takes note of bytes that have no row.
CREATE OR REPLACE FUNCTION objects.begin_upload(p_blob uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  IF p_seal IS DISTINCT FROM '' THEN   -- a token without a seal may raise the fence
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  INSERT INTO objects.blobs (id) VALUES (p_blob) ON CONFLICT DO NOTHING;   -- it may be repeated
END $$;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 39';
