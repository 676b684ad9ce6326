-- Buckets and their rules: the resource that a write of a key needs, and the fate of older versions.
--
-- Prefixes may have rules. Two kinds of rule exist beside the lease: `monotone`, for tokens of external minters that only have
-- to rise, and `none`, for writes that need no token. The rule of a key's longest prefix decides, else its bucket's.

-- Returns the resource whose grant a write of the key needs. depth 0: the bucket; n: the bucket and the first n components of
-- the key; -1: the bucket and the whole key.
CREATE OR REPLACE FUNCTION objects.resource_of(p_bucket text, p_depth integer, p_key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN CASE WHEN p_depth = 0 THEN p_bucket
              WHEN p_depth < 0 THEN p_bucket || '/' || p_key
              ELSE p_bucket || '/' || array_to_string((string_to_array(p_key, '/'))[1:p_depth], '/') END;
END $$;
REVOKE ALL ON FUNCTION objects.resource_of(text, integer, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the rule of a key: that of its longest prefix with a rule, else its bucket's. NULLs if there is no such bucket.
CREATE OR REPLACE FUNCTION objects.rule_of(p_bucket text, p_key text, OUT depth integer, OUT mode text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT x.depth, x.mode INTO depth, mode FROM objects.prefix_rules x
   WHERE x.bucket = p_bucket AND starts_with(p_key, x.prefix) ORDER BY length(x.prefix) DESC LIMIT 1;
  IF NOT FOUND THEN
    SELECT b.depth, b.mode INTO depth, mode FROM objects.buckets b WHERE b.name = p_bucket;
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.rule_of(text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.rule_of(text, text) TO fence_gateway;

-- Returns whether a bucket keeps versions that are no longer current.
CREATE OR REPLACE FUNCTION objects.keeps(p_bucket text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN coalesce((SELECT b.keep_count IS DISTINCT FROM 0 FROM objects.buckets b WHERE b.name = p_bucket), false);
END $$;
REVOKE ALL ON FUNCTION objects.keeps(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.keeps(text) TO fence_gateway;

-- Creates a bucket if there is none. Returns whether it did, and which rule the bucket has now.
CREATE OR REPLACE FUNCTION objects.create_bucket(p_bucket text, p_depth integer, p_mode text DEFAULT 'lease',
                                      OUT created boolean, OUT current_depth integer, OUT current_mode text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  LOOP
    created := false;
    SELECT depth, mode INTO current_depth, current_mode FROM objects.buckets WHERE name = p_bucket;
    EXIT WHEN FOUND;
    created := true;
    INSERT INTO objects.buckets (name, depth, mode) VALUES (p_bucket, p_depth, p_mode) ON CONFLICT DO NOTHING
    RETURNING depth, mode INTO current_depth, current_mode;
    EXIT WHEN FOUND;
  END LOOP;   -- another session created it in between: read it
END $$;
REVOKE ALL ON FUNCTION objects.create_bucket(text, integer, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.create_bucket(text, integer, text) TO fence_gateway;

-- Creates a bucket, or changes its rule. Returns true if it created the bucket. The rule of a bucket that holds objects can't
-- change; the commit of an upload under way is judged by the rule at that time.
CREATE OR REPLACE FUNCTION objects.ensure_bucket(p_bucket text, p_depth integer, p_mode text DEFAULT 'lease') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_or_made record;
BEGIN
  LOOP
    SELECT * INTO found_or_made FROM objects.create_bucket(p_bucket, p_depth, p_mode);
    IF found_or_made.current_depth = p_depth AND found_or_made.current_mode = p_mode THEN
      RETURN found_or_made.created;
    END IF;
    PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
    EXIT WHEN FOUND;
  END LOOP;   -- deleted in between
  PERFORM objects.wait_for_writes(p_bucket);
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket) THEN
    RAISE EXCEPTION 'bucket % holds objects that were written under another rule', p_bucket USING ERRCODE = 'ZO007';
  END IF;
  UPDATE objects.buckets SET depth = p_depth, mode = p_mode WHERE name = p_bucket;
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION objects.ensure_bucket(text, integer, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.ensure_bucket(text, integer, text) TO fence_gateway;

-- Deletes a bucket without objects, together with its uploads under way. It may be repeated.
CREATE OR REPLACE FUNCTION objects.delete_bucket(p_bucket text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  PERFORM objects.wait_for_writes(p_bucket);
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket)
     OR EXISTS (SELECT FROM objects.versions WHERE bucket = p_bucket AND kept_order IS NOT NULL) THEN
    RAISE EXCEPTION 'bucket % is not empty', p_bucket USING ERRCODE = 'ZO005';
  END IF;
  DELETE FROM objects.buckets WHERE name = p_bucket;
END $$;
REVOKE ALL ON FUNCTION objects.delete_bucket(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.delete_bucket(text) TO fence_gateway;

-- Sets how many or how long a bucket keeps older versions; the next sweep removes versions beyond these limits.
CREATE OR REPLACE FUNCTION objects.set_keep(p_bucket text, p_count integer, p_age interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
  PERFORM objects.wait_for_writes(p_bucket);
  UPDATE objects.buckets SET keep_count = p_count, keep_age = p_age WHERE name = p_bucket;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.set_keep(text, integer, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.set_keep(text, integer, interval) TO fence_gateway;

-- Gives a prefix of a bucket a rule of its own, or removes it (p_depth NULL). Refuses while objects below it were written under
-- another rule; the commit of an upload under way is judged by the rule at that time. The bucket's row gets a new version: a
-- publication on an older snapshot must not use the older rule.
CREATE OR REPLACE FUNCTION objects.set_prefix_rule(p_bucket text, p_prefix text, p_depth integer, p_mode text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  IF EXISTS (SELECT FROM objects.prefix_rules r WHERE r.bucket = p_bucket AND r.prefix = p_prefix AND r.depth = p_depth AND r.mode = p_mode)
     OR p_depth IS NULL AND NOT EXISTS (SELECT FROM objects.prefix_rules r WHERE r.bucket = p_bucket AND r.prefix = p_prefix) THEN
    RETURN;
  END IF;
  PERFORM objects.wait_for_writes(p_bucket);
  IF EXISTS (SELECT FROM objects.list(p_bucket, p_prefix, '', '', 1)) THEN
    RAISE EXCEPTION 'bucket % holds objects below % that were written under another rule', p_bucket, p_prefix USING ERRCODE = 'ZO007';
  END IF;
  UPDATE objects.buckets SET depth = depth WHERE name = p_bucket;
  DELETE FROM objects.prefix_rules r WHERE r.bucket = p_bucket AND r.prefix = p_prefix;
  IF p_depth IS NOT NULL THEN
    INSERT INTO objects.prefix_rules (bucket, prefix, depth, mode) VALUES (p_bucket, p_prefix, p_depth, p_mode);
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.set_prefix_rule(text, text, integer, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.set_prefix_rule(text, text, integer, text) TO fence_gateway;

-- Stores a document in place of the one of its kind; NULL removes it. It may be repeated. Raises ZO001 if there is no such
-- bucket.
CREATE OR REPLACE FUNCTION objects.set_bucket_document(p_bucket text, p_kind text, p_document text) RETURNS void
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
REVOKE ALL ON FUNCTION objects.set_bucket_document(text, text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.set_bucket_document(text, text, text) TO fence_gateway;
