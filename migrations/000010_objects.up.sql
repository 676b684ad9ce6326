-- Pointers to objects: what a bucket and key stand for at this moment, who wrote it under which fencing token, and which blobs
-- hold the bytes. The bytes lie in a blob store; a name becomes visible, or changes, only by one of the transactions below,
-- which carry the fence check. Nobody writes these tables but the functions here.
--
-- A blob's life: pending (announced, bytes may be on their way) -> live (a version lists it) -> superseded (that version is no
-- longer current) -> condemned (may be deleted from the store). A pending blob may also go to condemned; which of the two ways
-- it takes is decided by who changes its row first, never by a clock.
--
-- Refusals of the functions: ZF001-ZF004 as everywhere, and class ZO:
--   ZO001 no such bucket       ZO002 a precondition failed (DETAIL: If-Match or If-None-Match)    ZO003 no such key
--   ZO004 the upload was given up: its blob is condemned or unknown     ZO005 the bucket is not empty
--   ZO006 the invocation id was used for another request                ZO007 the bucket's rule can't change while it holds objects

CREATE SCHEMA objects AUTHORIZATION fence_owner;
SET ROLE fence_owner;
GRANT USAGE ON SCHEMA objects TO fence_gateway;

CREATE TABLE objects.buckets (
  name       text COLLATE "C" PRIMARY KEY,
  depth      integer NOT NULL CHECK (depth >= -1),    -- which resource a key's write needs; see objects.resource_of
  created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);

CREATE TABLE objects.blobs (
  id         uuid PRIMARY KEY,
  state      text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'live', 'superseded', 'condemned')),
  changed_at timestamptz NOT NULL DEFAULT pg_catalog.now()
) WITH (fillfactor = 70);
CREATE INDEX blobs_to_sweep ON objects.blobs (changed_at) WHERE state <> 'live';

-- One row for each accepted write, deletions included (a deletion lists no blob). Rows outlive their blobs: they answer which
-- token wrote what, and they hold the invocation ids by which a late first attempt is recognised.
CREATE TABLE objects.versions (
  id            uuid PRIMARY KEY,
  bucket        text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  deletion      boolean NOT NULL DEFAULT false,
  blobs         uuid[] NOT NULL,                      -- in the order of their bytes
  blob_sizes    bigint[] NOT NULL,
  size          bigint NOT NULL,
  etag          text NOT NULL,                        -- without quotes
  attributes    jsonb NOT NULL DEFAULT '{}',          -- content type, metadata, checksums: what a read gives back
  resource      text NOT NULL,
  token         bigint NOT NULL,
  invocation_id text,                                 -- amz-sdk-invocation-id: the same for each attempt of one request
  created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE UNIQUE INDEX versions_once ON objects.versions (bucket, key, invocation_id) WHERE invocation_id IS NOT NULL;

-- The current version of each key. Listing reads only this table.
CREATE TABLE objects.pointers (
  bucket      text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  version     uuid NOT NULL,
  size        bigint NOT NULL,
  etag        text NOT NULL,
  modified_at timestamptz NOT NULL,
  PRIMARY KEY (bucket, key)
) WITH (fillfactor = 80);

GRANT SELECT ON objects.buckets, objects.blobs, objects.versions, objects.pointers TO fence_gateway;

-- The resource whose grant a write of the key needs: depth 0: the bucket; n: the bucket and the first n components of the key;
-- -1: the bucket and the whole key.
CREATE FUNCTION objects.resource_of(p_bucket text, p_depth integer, p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN p_depth = 0 THEN p_bucket
              WHEN p_depth < 0 THEN p_bucket || '/' || p_key
              ELSE p_bucket || '/' || array_to_string((string_to_array(p_key, '/'))[1:p_depth], '/') END
$$;

-- The first thing that each function does that changes anything. Its COMMIT will be durable, whatever the session chose: a crash
-- that took back a condemned row after its bytes were deleted would lose an object. And the snapshots are new ones: one from
-- before the wait for a lock does not show what that lock's holder did.
CREATE FUNCTION objects.begin_change() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.need_read_committed();
  PERFORM fence.commit_durably();
END $$;

-- Refuses unless the bucket exists, the grant is of the resource that the key needs, and its token is the recorded one. With
-- p_seal, the SHA-256 of the presented seal, the fence authenticates the token (0: "the one that this seal was issued with");
-- without it the gateway has, by its own MAC. Returns the recorded token. Until the transaction ends the bucket's rule can't
-- change, and a new holder's acquisition can't complete.
CREATE FUNCTION objects.authorize(p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  d integer;
  needed text;
  v fence.verdict;
BEGIN
  -- A change of the rule locks the row exclusively. Not an advisory lock: any login of the database could hold one.
  SELECT depth INTO d FROM objects.buckets WHERE name = p_bucket FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  needed := objects.resource_of(p_bucket, d, p_key);
  IF needed <> p_resource THEN
    RAISE EXCEPTION 'grant is for %, but the write needs %', p_resource, needed USING ERRCODE = 'ZF004',
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'needed', needed)::text,
      HINT = 'Acquire the resource that the write needs.';
  END IF;
  IF p_seal IS NULL THEN
    RETURN fence.check_issued(p_resource, p_token);
  END IF;
  v := fence.verify(p_resource, p_token, p_seal, 'sealed');
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;

-- Announces a blob, so that whatever becomes of the upload somebody can find and remove its bytes. Refuses at once what the
-- commit would refuse: no use in sending the bytes.
CREATE FUNCTION objects.begin_upload(p_blob uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  INSERT INTO objects.blobs (id) VALUES (p_blob) ON CONFLICT DO NOTHING;   -- it may be repeated
END $$;

-- Gives up a pending blob. False: it is not pending any more, so its bytes must stay.
CREATE FUNCTION objects.abandon_upload(p_blob uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = p_blob AND state = 'pending';
  RETURN FOUND;
END $$;

-- The current version of a key, locked; NULLs where there is none.
CREATE FUNCTION objects.lock_pointer(p_bucket text, p_key text, p_if_match text, p_if_none_match boolean) RETURNS objects.pointers
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

-- The blobs of a version that is no longer current.
CREATE FUNCTION objects.supersede(p_version uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE objects.blobs SET state = 'superseded', changed_at = now()
   WHERE id IN (SELECT unnest(v.blobs) FROM objects.versions v WHERE v.id = p_version) AND state = 'live'
$$;

-- What became of an earlier attempt: NULLs where there was none that took effect.
CREATE FUNCTION objects.earlier_attempt(p_bucket text, p_key text, p_version uuid, p_invocation text) RETURNS objects.versions
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT v.* FROM objects.versions v WHERE v.id = p_version
  UNION ALL
  SELECT v.* FROM objects.versions v WHERE v.bucket = p_bucket AND v.key = p_key AND v.invocation_id = p_invocation
  LIMIT 1
$$;

-- Commits an upload: the fence check and the swap of the pointer in one transaction. Calling it again with the same version, or
-- another attempt of the same invocation, gives the first answer and changes nothing, so it also resolves a commit whose outcome
-- was lost. Returns the version that the request produced.
CREATE FUNCTION objects.commit_upload(
  p_version uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean
) RETURNS objects.versions
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done objects.versions;
  made objects.versions;
  old objects.pointers;
  n integer;
BEGIN
  PERFORM objects.begin_change();
  -- The blobs' rows serialise the tries of one commit: a try that is still on its way in another session ends first.
  PERFORM 1 FROM objects.blobs WHERE id = ANY (p_blobs) ORDER BY id FOR UPDATE;
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, invocation_id)
    VALUES (p_version, p_bucket, p_key, p_blobs, p_blob_sizes, (SELECT sum(s) FROM unnest(p_blob_sizes) s), p_etag, p_attributes,
            p_resource, p_token, p_invocation)
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

  UPDATE objects.blobs SET state = 'live', changed_at = now() WHERE id = ANY (p_blobs) AND state = 'pending';
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(p_blobs) THEN
    RAISE EXCEPTION 'the upload was given up before it was complete' USING ERRCODE = 'ZO004';
  END IF;
  LOOP
    old := objects.lock_pointer(p_bucket, p_key, p_if_match, p_if_none_match);
    IF old.version IS NOT NULL THEN
      UPDATE objects.pointers SET version = made.id, size = made.size, etag = made.etag, modified_at = made.created_at
       WHERE bucket = p_bucket AND key = p_key;
      PERFORM objects.supersede(old.version);
      RETURN made;
    END IF;
    INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
    VALUES (p_bucket, p_key, made.id, made.size, made.etag, made.created_at) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN made;
    END IF;
  END LOOP;   -- created by another writer in between: look at it
END $$;

-- Deletes a key: the fence check and the removal of the pointer in one transaction. Deleting what is not there succeeds.
-- Repeating it is as with objects.commit_upload.
CREATE FUNCTION objects.commit_deletion(
  p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text
) RETURNS void
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
    INSERT INTO objects.versions (id, bucket, key, deletion, blobs, blob_sizes, size, etag, resource, token, invocation_id)
    VALUES (p_version, p_bucket, p_key, true, '{}', '{}', 0, '', p_resource, p_token, p_invocation) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      PERFORM objects.lock_pointer(p_bucket, p_key, p_if_match, false);
      -- Where there was none to lock, one may have come in between.
      DELETE FROM objects.pointers WHERE bucket = p_bucket AND key = p_key RETURNING * INTO old;
      PERFORM objects.supersede(old.version);
      RETURN;
    END IF;
    done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  END IF;
  IF NOT done.deletion THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  END IF;
END $$;

-- Creates a bucket where there is none. Whether it did, and which rule the bucket has now.
CREATE FUNCTION objects.create_bucket(p_bucket text, p_depth integer, OUT created boolean, OUT current_depth integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  LOOP
    created := false;
    SELECT depth INTO current_depth FROM objects.buckets WHERE name = p_bucket;
    EXIT WHEN FOUND;
    created := true;
    INSERT INTO objects.buckets (name, depth) VALUES (p_bucket, p_depth) ON CONFLICT DO NOTHING RETURNING depth INTO current_depth;
    EXIT WHEN FOUND;
  END LOOP;   -- created by somebody else in between: look at it
END $$;

-- Creates a bucket, or changes its rule. True: it was created. The rule of a bucket that holds objects
-- can't be changed; an upload that is under way is judged by the rule at its commit.
CREATE FUNCTION objects.ensure_bucket(p_bucket text, p_depth integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_or_made record;
BEGIN
  LOOP
    SELECT * INTO found_or_made FROM objects.create_bucket(p_bucket, p_depth);
    IF found_or_made.current_depth = p_depth THEN
      RETURN found_or_made.created;
    END IF;
    PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
    EXIT WHEN FOUND;
  END LOOP;   -- deleted in between
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket) THEN
    RAISE EXCEPTION 'bucket % holds objects that were written under another rule', p_bucket USING ERRCODE = 'ZO007';
  END IF;
  UPDATE objects.buckets SET depth = p_depth WHERE name = p_bucket;
  RETURN false;
END $$;

CREATE FUNCTION objects.delete_bucket(p_bucket text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket) THEN
    RAISE EXCEPTION 'bucket % is not empty', p_bucket USING ERRCODE = 'ZO005';
  END IF;
  DELETE FROM objects.buckets WHERE name = p_bucket;
END $$;

-- The least string above every string that starts with p, in the order of code points; NULL where there is none.
CREATE FUNCTION objects.prefix_end(p text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  c integer;
BEGIN
  WHILE p <> '' LOOP
    c := pg_catalog.ascii(pg_catalog.right(p, 1));
    p := pg_catalog.left(p, -1);
    IF c < 1114111 THEN
      RETURN p || pg_catalog.chr(CASE WHEN c = 55295 THEN 57344 ELSE c + 1 END);   -- over the surrogates
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- Lists keys above p_after in the order of their bytes, at most p_limit entries. With a delimiter, all keys that share what
-- comes up to the delimiter's first occurrence after the prefix are one entry, is_prefix; the scan jumps over them.
CREATE FUNCTION objects.list(p_bucket text, p_prefix text, p_delimiter text, p_after text, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, size bigint, etag text, modified_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Whatever the statistics say: in the primary key's order, so that a jump costs one descent and reads no more than it shows.
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  lo text COLLATE "C" := p_prefix;
  r record;
  left_over integer := p_limit;
  cut integer := strpos(substr(p_after, length(p_prefix) + 1), p_delimiter);
  jumped boolean;
BEGIN
  IF p_after COLLATE "C" >= p_prefix AND p_after <> '' THEN
    lo := p_after || chr(1);   -- the least string above p_after: texts hold no NUL
    IF p_delimiter <> '' AND starts_with(p_after, p_prefix) AND cut > 0
       AND length(p_after) = length(p_prefix) + cut + length(p_delimiter) - 1 THEN
      lo := objects.prefix_end(p_after);   -- p_after is itself a common prefix
    END IF;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    jumped := false;
    FOR r IN SELECT p.key, p.size, p.etag, p.modified_at FROM objects.pointers p
              WHERE p.bucket = p_bucket AND p.key >= lo ORDER BY p.key LIMIT left_over LOOP
      IF NOT starts_with(r.key, p_prefix) THEN
        RETURN;
      END IF;
      cut := CASE WHEN p_delimiter = '' THEN 0 ELSE strpos(substr(r.key, length(p_prefix) + 1), p_delimiter) END;
      left_over := left_over - 1;
      IF cut > 0 THEN
        entry := left(r.key, length(p_prefix) + cut + length(p_delimiter) - 1);
        is_prefix := true; size := NULL; etag := NULL; modified_at := NULL;
        lo := objects.prefix_end(entry);
        jumped := true;
        RETURN NEXT;
        EXIT;
      END IF;
      entry := r.key; is_prefix := false; size := r.size; etag := r.etag; modified_at := r.modified_at;
      RETURN NEXT;
    END LOOP;
    EXIT WHEN NOT jumped;
  END LOOP;
END $$;

-- Nobody else may call any of them.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA objects FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.begin_upload, objects.abandon_upload, objects.commit_upload, objects.commit_deletion,
  objects.create_bucket, objects.ensure_bucket, objects.delete_bucket, objects.list TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 10';
