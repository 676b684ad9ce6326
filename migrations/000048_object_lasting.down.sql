SET ROLE fence_owner;

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

CREATE OR REPLACE FUNCTION objects.abandon_upload(p_blob uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = p_blob AND state = 'pending';
  RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION objects.completed_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea)
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

CREATE OR REPLACE FUNCTION fence.staged(stage uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'fence.staged needs READ COMMITTED: it tells what others have committed until now' USING ERRCODE = 'invalid_transaction_state';
  END IF;
  PERFORM 1 FROM objects.blobs b WHERE b.id IN (SELECT unnest(s.blobs) FROM objects.stages s WHERE s.id = staged.stage) ORDER BY b.id FOR SHARE;
  RETURN CASE
    WHEN EXISTS (SELECT FROM objects.versions v WHERE v.id = staged.stage) THEN 'published'
    WHEN EXISTS (SELECT FROM objects.stages s WHERE s.id = staged.stage
                    AND NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state <> 'pending')) THEN 'staged'
    ELSE 'gone' END;
END $$;

CREATE OR REPLACE FUNCTION objects.supersede(p_version uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
  root uuid;
BEGIN
  SELECT v.blobs, coalesce(v.origin, v.id) INTO ids, root FROM objects.versions v WHERE v.id = p_version;
  PERFORM 1 FROM objects.blobs b WHERE b.id = ANY (ids) ORDER BY b.id FOR UPDATE;
  IF NOT objects.is_named(root) THEN
    UPDATE objects.blobs b SET state = 'superseded', changed_at = now() WHERE b.id = ANY (ids) AND b.state = 'live';
  END IF;
END $$;

CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
BEGIN
  PERFORM objects.begin_change();
  IF p_dry THEN
    RETURN (SELECT count(*) FROM (
      SELECT FROM objects.blobs b
       WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending
              OR b.state = 'superseded' AND b.changed_at < now() - p_superseded AND NOT objects.is_named(b.version))
         AND NOT EXISTS (
           SELECT FROM objects.parts mine JOIN objects.uploads u ON u.id = mine.upload
            WHERE mine.blob = b.id AND (u.created_at >= now() - p_pending
              OR EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= now() - p_pending)))
       LIMIT p_limit) due);
  END IF;
  DELETE FROM objects.uploads WHERE id IN (
    SELECT u.id FROM objects.uploads u WHERE u.created_at < now() - p_pending
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= now() - p_pending)
     LIMIT p_limit FOR UPDATE SKIP LOCKED);
  SELECT coalesce(array_agg(id), '{}') INTO ids FROM (
    SELECT b.id FROM objects.blobs b
     WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending
            OR b.state = 'superseded' AND b.changed_at < now() - p_superseded AND NOT objects.is_named(b.version))
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     LIMIT p_limit FOR UPDATE SKIP LOCKED) due;
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  RETURN cardinality(ids);
END $$;

DROP FUNCTION objects.ages_since;
ALTER TABLE objects.installation DROP COLUMN history, DROP COLUMN since;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 47';
