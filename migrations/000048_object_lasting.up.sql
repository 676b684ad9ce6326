-- What is answered lasts, and a grace is a whole one.
--
-- A try of a request that finds what an earlier one did writes nothing, so its COMMIT waits for no synchronous standby; and the
-- wait of the earlier one may have been cancelled, as a client's that gives up is. Then what it did is seen here before the
-- standby has it, and a failover undoes it. So whoever answers by what was found writes something to wait for.
SET ROLE fence_owner;

-- As before, but for that.
CREATE OR REPLACE FUNCTION objects.earlier_attempt(p_bucket text, p_key text, p_version uuid, p_invocation text) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
BEGIN
  SELECT v.* INTO done FROM objects.versions v WHERE v.id = p_version;
  IF NOT FOUND AND p_invocation IS NOT NULL THEN
    SELECT v.* INTO done FROM objects.versions v WHERE v.bucket = p_bucket AND v.key = p_key AND v.invocation_id = p_invocation;
  END IF;
  IF FOUND THEN
    PERFORM pg_logical_emit_message(true, 'fencegate', '');
  END IF;
  RETURN done;
END $$;

-- As before. False is relied upon, too: the upload took effect.
CREATE OR REPLACE FUNCTION objects.abandon_upload(p_blob uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = p_blob AND state = 'pending';
  IF FOUND THEN
    RETURN true;
  END IF;
  PERFORM pg_logical_emit_message(true, 'fencegate', '');
  RETURN false;
END $$;

-- As before, but for that.
CREATE OR REPLACE FUNCTION objects.completed_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea)
RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v objects.versions;
BEGIN
  PERFORM objects.begin_change();
  SELECT * INTO v FROM objects.versions WHERE id = p_upload AND bucket = p_bucket AND key = p_key;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  IF p_seal IS NOT NULL OR v.resource <> p_resource OR v.token <> p_token THEN
    PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  END IF;
  PERFORM pg_logical_emit_message(true, 'fencegate', '');
  RETURN v;
END $$;

-- As before; and 'published' waits, at its own COMMIT, for the standbys that the publication may not have waited for.
CREATE OR REPLACE FUNCTION fence.staged(stage uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'fence.staged needs READ COMMITTED: it tells what others have committed until now' USING ERRCODE = 'invalid_transaction_state';
  END IF;
  PERFORM 1 FROM objects.blobs b WHERE b.id IN (SELECT unnest(s.blobs) FROM objects.stages s WHERE s.id = staged.stage) ORDER BY b.id FOR SHARE;
  IF EXISTS (SELECT FROM objects.versions v WHERE v.id = staged.stage) THEN
    PERFORM fence.commit_durably();
    PERFORM pg_logical_emit_message(true, 'fencegate', '');
    RETURN 'published';
  END IF;
  RETURN CASE
    WHEN EXISTS (SELECT FROM objects.stages s WHERE s.id = staged.stage
                    AND NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state <> 'pending')) THEN 'staged'
    ELSE 'gone' END;
END $$;

-- As before, but the grace counts from the change and not from its transaction's beginning, which for a publication may be long
-- before: readers, replicas and whoever restores it would have nothing of the grace.
CREATE OR REPLACE FUNCTION objects.supersede(p_version uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
  root uuid;
BEGIN
  SELECT v.blobs, coalesce(v.origin, v.id) INTO ids, root FROM objects.versions v WHERE v.id = p_version;
  PERFORM 1 FROM objects.blobs b WHERE b.id = ANY (ids) ORDER BY b.id FOR UPDATE;
  IF NOT objects.is_named(root) THEN
    UPDATE objects.blobs b SET state = 'superseded', changed_at = clock_timestamp() WHERE b.id = ANY (ids) AND b.state = 'live';
  END IF;
END $$;

-- After a promotion or a restore, rows are as old as what was restored, and who has restored may find that it was not enough, and
-- restore something newer: then what is pending or superseded now is live. So in a new history every age begins anew, with the first
-- sweep that sees it.
ALTER TABLE objects.installation ADD COLUMN history text, ADD COLUMN since timestamptz NOT NULL DEFAULT '-infinity';
UPDATE objects.installation SET history = (SELECT i.identity FROM fence.identity() i);

-- Since when ages count in this history.
CREATE FUNCTION objects.ages_since(p_dry boolean) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  here text := (SELECT i.identity FROM fence.identity() i);
  o objects.installation;
BEGIN
  SELECT * INTO o FROM objects.installation;
  IF o.history = here THEN
    RETURN o.since;
  END IF;
  IF NOT p_dry THEN
    UPDATE objects.installation i SET history = here, since = now() WHERE i.history IS DISTINCT FROM here;
  END IF;
  RETURN now();
END $$;

-- As before, but for that.
CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
  pending timestamptz := now() - p_pending;         -- what has not changed since goes
  superseded timestamptz := now() - p_superseded;
  since timestamptz;
BEGIN
  PERFORM objects.begin_change();
  since := objects.ages_since(p_dry);
  IF since >= pending THEN
    pending := '-infinity';
  END IF;
  IF since >= superseded THEN
    superseded := '-infinity';
  END IF;
  IF p_dry THEN
    RETURN (SELECT count(*) FROM (
      SELECT FROM objects.blobs b
       WHERE (b.state = 'pending' AND b.changed_at < pending
              OR b.state = 'superseded' AND b.changed_at < superseded AND NOT objects.is_named(b.version))
         AND NOT EXISTS (
           SELECT FROM objects.parts mine JOIN objects.uploads u ON u.id = mine.upload
            WHERE mine.blob = b.id AND (u.created_at >= pending
              OR EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= pending)))
       LIMIT p_limit) due);
  END IF;
  DELETE FROM objects.uploads WHERE id IN (
    SELECT u.id FROM objects.uploads u WHERE u.created_at < pending
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= pending)
     LIMIT p_limit FOR UPDATE SKIP LOCKED);
  SELECT coalesce(array_agg(id), '{}') INTO ids FROM (
    SELECT b.id FROM objects.blobs b
     WHERE (b.state = 'pending' AND b.changed_at < pending
            OR b.state = 'superseded' AND b.changed_at < superseded AND NOT objects.is_named(b.version))
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     LIMIT p_limit FOR UPDATE SKIP LOCKED) due;
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  RETURN cardinality(ids);
END $$;

REVOKE ALL ON FUNCTION objects.ages_since FROM PUBLIC;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 48';
