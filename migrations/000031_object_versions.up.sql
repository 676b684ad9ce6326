-- Older versions of objects: how many or how long they are kept, listing, restoring and removing them, and who wrote each.
--
-- A version is current (a pointer names it), kept (kept_order says since which change), or gone: then its blobs are superseded,
-- and only the row is left, which answers who wrote it. Restoring an older version makes a new one that lists the same blobs, so
-- no bytes move. Versions that share blobs have one origin, the version that first listed them; a blob is live as long as a
-- version of its origin is current or kept. Whoever changes that locks the blobs' rows first and looks then.
--
-- Locks are taken in the order: pointer, versions, blobs of older versions.

SET ROLE fence_owner;

-- What becomes of a version that is no longer current: the keep_count newest of a key are kept, or all for keep_age; both NULL:
-- all, for ever. 0, the default: none.
ALTER TABLE objects.buckets
  ADD COLUMN keep_count integer DEFAULT 0 CHECK (keep_count >= 0),
  ADD COLUMN keep_age   interval CHECK (keep_age > '0'),
  ADD CHECK (keep_count IS NULL OR keep_age IS NULL);

ALTER TABLE objects.blobs ADD COLUMN version uuid;   -- the origin of the versions that list it
UPDATE objects.blobs b SET version = v.id FROM objects.versions v WHERE b.id = ANY (v.blobs) AND b.state IN ('live', 'superseded');

ALTER TABLE objects.versions
  ADD COLUMN holder       text NOT NULL DEFAULT '',   -- who held the lease, as the fence recorded it
  ADD COLUMN origin       uuid,                       -- of a restored version: where its blobs come from
  ADD COLUMN kept_order   bigint,                     -- rises with each version of the bucket that stops being current
  ADD COLUMN kept_at      timestamptz,
  ADD COLUMN removed_by   text,                       -- who removed this version by its id
  ADD COLUMN removed_with bigint,                     -- and with which token
  ADD COLUMN removed_at   timestamptz;
CREATE SEQUENCE objects.kept_order;
CREATE INDEX versions_kept ON objects.versions (bucket, key, kept_order DESC) WHERE kept_order IS NOT NULL;
CREATE INDEX versions_of_origin ON objects.versions (origin) WHERE origin IS NOT NULL;
CREATE INDEX deletions_to_forget ON objects.versions (created_at) WHERE deletion AND kept_order IS NULL;
-- Also of writes without an invocation id: the audit looks there. NULLs are distinct.
DROP INDEX objects.versions_once;
CREATE UNIQUE INDEX versions_once ON objects.versions (bucket, key, invocation_id);

CREATE FUNCTION objects.keeps(p_bucket text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT b.keep_count IS DISTINCT FROM 0 FROM objects.buckets b WHERE b.name = p_bucket), false)
$$;

-- Whether any version of an origin is current or kept.
CREATE FUNCTION objects.is_named(p_origin uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM objects.versions v
                  WHERE v.id IN (SELECT p_origin UNION ALL SELECT o.id FROM objects.versions o WHERE o.origin = p_origin)
                    AND (v.kept_order IS NOT NULL
                         OR EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id)))
$$;

-- The blobs of a version that is gone, unless another version names them. Two statements: what is seen under the lock counts.
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

-- What becomes of a version that has stopped being current.
CREATE FUNCTION objects.retire(p_bucket text, p_version uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF objects.keeps(p_bucket) THEN
    UPDATE objects.versions SET kept_order = nextval('objects.kept_order'), kept_at = clock_timestamp() WHERE id = p_version;
  ELSE
    PERFORM objects.supersede(p_version);
  END IF;
END $$;

CREATE FUNCTION objects.holder_of(p_resource text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT f.holder FROM fence.resources f WHERE f.resource = p_resource), '')
$$;

-- Makes a version current; the one that was is retired. The conditions are judged while the pointer is locked.
CREATE FUNCTION objects.make_current(made objects.versions, p_if_match text, p_if_none_match boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old objects.pointers;
BEGIN
  LOOP
    old := objects.lock_pointer(made.bucket, made.key, p_if_match, p_if_none_match);
    IF old.version IS NOT NULL THEN
      UPDATE objects.pointers SET version = made.id, size = made.size, etag = made.etag, modified_at = made.created_at
       WHERE bucket = made.bucket AND key = made.key;
      PERFORM objects.retire(made.bucket, old.version);
      RETURN;
    END IF;
    INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
    VALUES (made.bucket, made.key, made.id, made.size, made.etag, made.created_at) ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
  END LOOP;   -- created by another writer in between: look at it
END $$;

CREATE OR REPLACE FUNCTION objects.commit_upload(
  p_version uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  made objects.versions;
  n integer;
BEGIN
  PERFORM objects.begin_change();
  -- The blobs' rows serialise the tries of one commit: a try that is still on its way in another session ends first.
  PERFORM 1 FROM objects.blobs WHERE id = ANY (p_blobs) ORDER BY id FOR UPDATE;
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, holder, invocation_id)
    VALUES (p_version, p_bucket, p_key, p_blobs, p_blob_sizes, (SELECT sum(s) FROM unnest(p_blob_sizes) s), p_etag, p_attributes,
            p_resource, p_token, objects.holder_of(p_resource), p_invocation)
    ON CONFLICT DO NOTHING RETURNING * INTO made;
    IF made.id IS NULL THEN   -- another attempt was committed between the look and the INSERT
      done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
    END IF;
  END IF;
  IF made.id IS NULL THEN
    IF done.etag <> p_etag OR done.deletion THEN
      RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
    END IF;
    UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (p_blobs) AND state = 'pending';
    RETURN done;
  END IF;

  UPDATE objects.blobs SET state = 'live', version = made.id, changed_at = now() WHERE id = ANY (p_blobs) AND state = 'pending';
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(p_blobs) THEN
    RAISE EXCEPTION 'the upload was given up before it was complete' USING ERRCODE = 'ZO004';
  END IF;
  PERFORM objects.make_current(made, p_if_match, p_if_none_match);
  RETURN made;
END $$;

-- As before, but it returns the deletion's own version, which is kept where the bucket keeps versions.
DROP FUNCTION objects.commit_deletion;
CREATE FUNCTION objects.commit_deletion(
  p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  old objects.pointers;
BEGIN
  PERFORM objects.begin_change();
  -- Serialises the tries of one deletion, as the blobs' rows do it for an upload. Nobody else knows the id beforehand.
  PERFORM pg_advisory_xact_lock(hashtextextended(p_version::text, 0));
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    INSERT INTO objects.versions (id, bucket, key, deletion, blobs, blob_sizes, size, etag, resource, token, holder, invocation_id)
    VALUES (p_version, p_bucket, p_key, true, '{}', '{}', 0, '', p_resource, p_token, objects.holder_of(p_resource), p_invocation)
    ON CONFLICT DO NOTHING RETURNING * INTO done;
    IF FOUND THEN
      PERFORM objects.lock_pointer(p_bucket, p_key, p_if_match, false);
      -- Where there was none to lock, one may have come in between.
      DELETE FROM objects.pointers WHERE bucket = p_bucket AND key = p_key RETURNING * INTO old;
      PERFORM objects.retire(p_bucket, old.version);
      PERFORM objects.retire(p_bucket, done.id);   -- after what it deletes
      SELECT * INTO done FROM objects.versions v WHERE v.id = p_version;
      RETURN done;
    END IF;
    done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  END IF;
  IF NOT done.deletion THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  END IF;
  RETURN done;
END $$;

-- Makes an older version current again: a new version that lists the same blobs, under the grant of whoever restores it. Any
-- version will do whose blobs are all there, so also one that was superseded within the sweep's grace. Repeating it is as with
-- objects.commit_upload.
CREATE FUNCTION objects.restore_version(
  p_version uuid, p_bucket text, p_key text, p_source uuid, p_resource text, p_token bigint, p_seal bytea, p_invocation text,
  p_if_match text, p_if_none_match boolean
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  src objects.versions;
  n integer;
BEGIN
  PERFORM objects.begin_change();
  PERFORM pg_advisory_xact_lock(hashtextextended(p_version::text, 0));
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    PERFORM 1 FROM objects.pointers WHERE bucket = p_bucket AND key = p_key FOR UPDATE;
    SELECT * INTO src FROM objects.versions v
     WHERE v.id = p_source AND v.bucket = p_bucket AND v.key = p_key AND NOT v.deletion AND v.removed_at IS NULL FOR UPDATE;
    -- Whoever condemns a blob locks its row, so it is there until this is committed, and live from then on.
    PERFORM 1 FROM objects.blobs b WHERE b.id = ANY (src.blobs) ORDER BY b.id FOR UPDATE;
    UPDATE objects.blobs b SET state = 'live', changed_at = now() WHERE b.id = ANY (src.blobs) AND b.state IN ('live', 'superseded');
    GET DIAGNOSTICS n = ROW_COUNT;
    IF src.id IS NULL OR n <> cardinality(src.blobs) THEN
      RAISE EXCEPTION 'version % of object % in bucket % is not there any more', p_source, p_key, p_bucket USING ERRCODE = 'ZO009';
    END IF;
    INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, holder, origin, invocation_id)
    VALUES (p_version, p_bucket, p_key, src.blobs, src.blob_sizes, src.size, src.etag, src.attributes,
            p_resource, p_token, objects.holder_of(p_resource), coalesce(src.origin, src.id), p_invocation)
    ON CONFLICT DO NOTHING RETURNING * INTO done;
    IF FOUND THEN
      PERFORM objects.make_current(done, p_if_match, p_if_none_match);
      RETURN done;
    END IF;
    done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  END IF;
  IF done.deletion THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  END IF;
  RETURN done;
END $$;

-- Removes one version, current or kept. Where it was the newest, the next older one is current again, unless that is a deletion.
-- Whether the removed version was a deletion; NULL: there is no such version, any more.
CREATE FUNCTION objects.remove_version(p_bucket text, p_key text, p_version uuid, p_resource text, p_token bigint, p_seal bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur objects.pointers;
  v objects.versions;
  newest objects.versions;
BEGIN
  PERFORM objects.begin_change();
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  cur := objects.lock_pointer(p_bucket, p_key, NULL, false);
  SELECT * INTO v FROM objects.versions x WHERE x.id = p_version AND x.bucket = p_bucket AND x.key = p_key FOR UPDATE;
  IF v.id IS NULL OR v.kept_order IS NULL AND v.id IS DISTINCT FROM cur.version THEN
    RETURN NULL;
  END IF;
  UPDATE objects.versions x SET kept_order = NULL, kept_at = NULL, removed_by = objects.holder_of(p_resource), removed_with = p_token, removed_at = now()
   WHERE x.id = p_version;
  DELETE FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key AND p.version = p_version;
  IF cur.version IS NULL OR cur.version = p_version THEN
    SELECT * INTO newest FROM objects.versions x
     WHERE x.bucket = p_bucket AND x.key = p_key AND x.kept_order IS NOT NULL ORDER BY x.kept_order DESC LIMIT 1 FOR UPDATE;
    IF NOT newest.deletion AND (cur.version = p_version OR newest.kept_order < v.kept_order) THEN
      INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
      VALUES (p_bucket, p_key, newest.id, newest.size, newest.etag, newest.created_at) ON CONFLICT DO NOTHING;
      IF FOUND THEN   -- else another writer has just written the key
        UPDATE objects.versions x SET kept_order = NULL, kept_at = NULL WHERE x.id = newest.id;
      END IF;
    END IF;
  END IF;
  PERFORM objects.supersede(p_version);
  RETURN v.deletion;
END $$;

-- Chooses what is kept of a bucket's older versions; what is too many or too old by then goes with the next sweep.
CREATE FUNCTION objects.set_keep(p_bucket text, p_count integer, p_age interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  UPDATE objects.buckets SET keep_count = p_count, keep_age = p_age WHERE name = p_bucket;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
END $$;

CREATE OR REPLACE FUNCTION objects.delete_bucket(p_bucket text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket)
     OR EXISTS (SELECT FROM objects.versions WHERE bucket = p_bucket AND kept_order IS NOT NULL) THEN
    RAISE EXCEPTION 'bucket % is not empty', p_bucket USING ERRCODE = 'ZO005';
  END IF;
  DELETE FROM objects.buckets WHERE name = p_bucket;
END $$;

-- Lists versions in the order of their keys' bytes, of one key the newest first, from the entry after (p_after_key,
-- p_after_version), or where p_after_version is NULL from the key after p_after_key; with a delimiter as objects.list does it.
CREATE FUNCTION objects.list_versions(p_bucket text, p_prefix text, p_delimiter text, p_after_key text, p_after_version uuid, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, id uuid, latest boolean, deletion boolean, size bigint, etag text, modified_at timestamptz,
               resource text, token bigint, holder text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  lo text COLLATE "C" := p_prefix;
  k text COLLATE "C";
  cur uuid;
  below bigint;
  r record;
  left_over integer := p_limit;
  cut integer := strpos(substr(p_after_key, length(p_prefix) + 1), p_delimiter);
BEGIN
  IF p_after_key COLLATE "C" >= p_prefix AND p_after_key <> '' THEN
    lo := CASE WHEN p_delimiter <> '' AND starts_with(p_after_key, p_prefix) AND cut > 0
               THEN objects.prefix_end(left(p_after_key, length(p_prefix) + cut + length(p_delimiter) - 1))
               WHEN p_after_version IS NULL THEN p_after_key || chr(1)   -- the least string above it
               ELSE p_after_key END;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    SELECT min(n.key) INTO k FROM (
      (SELECT p.key FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key >= lo ORDER BY p.key LIMIT 1) UNION ALL
      (SELECT v.key FROM objects.versions v WHERE v.bucket = p_bucket AND v.key >= lo AND v.kept_order IS NOT NULL ORDER BY v.key LIMIT 1)) n;
    EXIT WHEN k IS NULL OR NOT starts_with(k, p_prefix);
    cut := CASE WHEN p_delimiter = '' THEN 0 ELSE strpos(substr(k, length(p_prefix) + 1), p_delimiter) END;
    IF cut > 0 THEN
      entry := left(k, length(p_prefix) + cut + length(p_delimiter) - 1);
      is_prefix := true; id := NULL; latest := NULL; deletion := NULL; size := NULL; etag := NULL; modified_at := NULL;
      resource := NULL; token := NULL; holder := NULL;
      left_over := left_over - 1;
      RETURN NEXT;
      lo := objects.prefix_end(entry);
      CONTINUE;
    END IF;
    lo := k || chr(1);
    SELECT p.version INTO cur FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = k;
    below := NULL;
    IF k = p_after_key AND p_after_version IS NOT NULL THEN
      -- Of a version that is gone by now nobody knows where it stood: rather show some twice.
      below := CASE WHEN p_after_version = cur THEN 9223372036854775807
                    ELSE (SELECT v.kept_order FROM objects.versions v WHERE v.id = p_after_version) END;
    END IF;
    FOR r IN (SELECT v.*, true AS newest FROM objects.versions v WHERE v.id = cur AND below IS NULL) UNION ALL
             (SELECT v.*, cur IS NULL AND v.deletion AND below IS NULL AND row_number() OVER (ORDER BY v.kept_order DESC) = 1
                FROM objects.versions v
               WHERE v.bucket = p_bucket AND v.key = k AND v.kept_order IS NOT NULL AND (below IS NULL OR v.kept_order < below)
               ORDER BY v.kept_order DESC LIMIT left_over) LOOP
      EXIT WHEN left_over = 0;
      left_over := left_over - 1;
      entry := k; is_prefix := false; id := r.id; latest := r.newest; deletion := r.deletion; size := r.size; etag := r.etag;
      modified_at := r.created_at; resource := r.resource; token := r.token; holder := r.holder;
      RETURN NEXT;
    END LOOP;
  END LOOP;
END $$;

-- Lets go of kept versions that their bucket keeps no longer; their blobs are superseded then, which gives them the sweep's grace.
-- A deletion counts for nothing and goes when it hides no kept version. Returns how many; p_dry only counts.
CREATE FUNCTION objects.prune_versions(p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
  gone uuid;
  n integer := 0;
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets ORDER BY name FOR SHARE;   -- as long as this goes on, nobody decides to keep more
  SELECT coalesce(array_agg(due.id), '{}') INTO ids FROM (
    SELECT k.id FROM (
      SELECT v.id, v.deletion, v.kept_at, b.keep_count, b.keep_age,
             count(*) FILTER (WHERE NOT v.deletion) OVER (PARTITION BY v.bucket, v.key ORDER BY v.kept_order DESC) AS nth,
             count(*) FILTER (WHERE NOT v.deletion) OVER (PARTITION BY v.bucket, v.key ORDER BY v.kept_order) AS hidden
        FROM objects.versions v JOIN objects.buckets b ON b.name = v.bucket
       WHERE v.kept_order IS NOT NULL AND (b.keep_count IS NOT NULL OR b.keep_age IS NOT NULL)) k
     WHERE CASE WHEN k.deletion THEN k.hidden = 0 AND (k.keep_count IS NOT NULL OR k.kept_at < now() - k.keep_age)
                ELSE k.nth > k.keep_count OR k.kept_at < now() - k.keep_age END
     LIMIT p_limit) due;
  IF p_dry THEN
    RETURN cardinality(ids);
  END IF;
  FOR gone IN SELECT v.id FROM objects.versions v WHERE v.id = ANY (ids) AND v.kept_order IS NOT NULL ORDER BY v.id FOR UPDATE SKIP LOCKED LOOP
    UPDATE objects.versions v SET kept_order = NULL, kept_at = NULL WHERE v.id = gone;
    PERFORM objects.supersede(gone);
    n := n + 1;
  END LOOP;
  RETURN n;
END $$;

-- Forgets deletions, and changes of tags, that are older than p_age. Their rows recognise late attempts, so one is in doubt until
-- the fence itself refuses every such attempt: until it stands above the token of the deletion. No clock proves that.
CREATE FUNCTION objects.forget_deletions(p_age interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
BEGIN
  PERFORM objects.begin_change();
  SELECT coalesce(array_agg(due.id), '{}') INTO ids FROM (
    SELECT v.id FROM objects.versions v JOIN fence.resources f ON f.resource = v.resource AND f.token > v.token
     WHERE v.deletion AND v.kept_order IS NULL AND v.created_at < now() - p_age LIMIT p_limit FOR UPDATE OF v SKIP LOCKED) due;
  IF NOT p_dry THEN
    DELETE FROM objects.versions v WHERE v.id = ANY (ids);
    DELETE FROM objects.taggings t USING fence.resources f
     WHERE f.resource = t.resource AND f.token > t.token AND t.created_at < now() - p_age;
  END IF;
  RETURN cardinality(ids);
END $$;

-- As before, and no blob that a version names, whatever its state says.
CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
BEGIN
  PERFORM objects.begin_change();
  IF NOT p_dry THEN
    DELETE FROM objects.uploads WHERE id IN (
      SELECT u.id FROM objects.uploads u WHERE u.created_at < now() - p_pending
         AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= now() - p_pending)
       LIMIT p_limit FOR UPDATE SKIP LOCKED);
  END IF;
  SELECT coalesce(array_agg(id), '{}') INTO ids FROM (
    SELECT b.id FROM objects.blobs b
     WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending
            OR b.state = 'superseded' AND b.changed_at < now() - p_superseded AND NOT objects.is_named(b.version))
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     LIMIT p_limit FOR UPDATE SKIP LOCKED) due;
  IF NOT p_dry THEN
    UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  END IF;
  RETURN cardinality(ids);
END $$;

-- Tags of a kept version, too.
CREATE OR REPLACE FUNCTION objects.put_tags(
  p_change uuid, p_bucket text, p_key text, p_version uuid, p_tags jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cur uuid;
  done uuid;
BEGIN
  PERFORM objects.begin_change();
  -- Serialises the tries of one change. Nobody else knows the id beforehand.
  PERFORM pg_advisory_xact_lock(hashtextextended(p_change::text, 0));
  SELECT t.version INTO done FROM objects.taggings t
   WHERE t.id = p_change OR t.bucket = p_bucket AND t.key = p_key AND t.invocation_id = p_invocation LIMIT 1;
  IF FOUND THEN
    RETURN done;
  END IF;
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  SELECT p.version INTO cur FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key FOR SHARE;
  IF p_version IS NULL AND cur IS NULL THEN
    RAISE EXCEPTION 'there is no object % in bucket %', p_key, p_bucket USING ERRCODE = 'ZO003';
  ELSIF p_version IS DISTINCT FROM cur AND p_version IS NOT NULL THEN
    SELECT v.id INTO cur FROM objects.versions v
     WHERE v.id = p_version AND v.bucket = p_bucket AND v.key = p_key AND v.kept_order IS NOT NULL AND NOT v.deletion FOR UPDATE;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'there is no version % of object % in bucket %', p_version, p_key, p_bucket USING ERRCODE = 'ZO009';
    END IF;
  END IF;
  INSERT INTO objects.taggings (id, version, bucket, key, tags, resource, token, invocation_id)
  VALUES (p_change, cur, p_bucket, p_key, p_tags, p_resource, p_token, p_invocation) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN   -- another attempt was committed between the look and the INSERT
    SELECT t.version INTO STRICT done FROM objects.taggings t
     WHERE t.bucket = p_bucket AND t.key = p_key AND t.invocation_id = p_invocation;
    RETURN done;
  END IF;
  UPDATE objects.versions v
     SET attributes = CASE WHEN p_tags = '{}' THEN v.attributes - 'tags' ELSE jsonb_set(v.attributes, '{tags}', p_tags) END
   WHERE v.id = cur;
  RETURN cur;
END $$;

REVOKE ALL ON FUNCTION objects.keeps, objects.is_named, objects.retire, objects.holder_of, objects.make_current, objects.commit_deletion,
  objects.restore_version, objects.remove_version, objects.set_keep, objects.list_versions, objects.prune_versions, objects.forget_deletions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.keeps, objects.commit_deletion, objects.restore_version, objects.remove_version, objects.set_keep,
  objects.list_versions, objects.prune_versions, objects.forget_deletions TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 31';
