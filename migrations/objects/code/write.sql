-- Pointers to objects: the current meaning of a bucket and key, its writer's fencing token, and the blobs that hold the bytes.
-- The bytes are in a blob store; a name becomes visible, or changes, only by one of the transactions below, which include the
-- fence check. Only the functions here write these tables.
--
-- A blob's life: pending (announced, bytes may be on their way) -> live (a version lists it) -> superseded (that version is no
-- longer current) -> condemned (may be deleted from the store). A pending blob may also become condemned. The first session to
-- change its row decides which, never a clock.
--
-- Refusals of the functions: ZF001-ZF004 as everywhere, and class ZO:
--   ZO001 no such bucket       ZO002 a precondition failed (DETAIL: If-Match or If-None-Match)    ZO003 no such key
--   ZO004 the upload was given up: its blob is condemned or unknown     ZO005 the bucket is not empty
--   ZO006 the invocation id was used for another request                ZO007 the bucket's rule can't change while it holds objects
--   ZO012 and ZO013: see writeonce.sql
--
-- Repeated requests: see attempts.sql.
--
-- The helpers of a write are PL/pgSQL: PostgreSQL 15 plans the statements of a SQL function again with each call that it can't
-- inline, and it inlines none with a search_path of its own.

-- Announces a blob, so that its bytes can be found and removed, whatever becomes of the upload. Refuses at once what the commit
-- would refuse, before the bytes are sent. Does not wait until the announcement is on disk: if PostgreSQL loses it in a crash,
-- the commit refuses the upload (ZO004), and the sweep finds bytes that have no row.
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
REVOKE ALL ON FUNCTION objects.begin_upload(uuid, text, text, text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.begin_upload(uuid, text, text, text, bigint, bytea) TO fence_gateway;

-- Gives up a pending blob. Returns false if it is no longer pending: its bytes must stay. The caller relies on false, too: the
-- upload took effect. So the COMMIT waits for the standbys; see attempts.sql.
CREATE OR REPLACE FUNCTION objects.abandon_upload(p_blob uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = p_blob AND state = 'pending';
  IF FOUND THEN
    RETURN true;
  END IF;
  PERFORM objects.answer_lasts();
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION objects.abandon_upload(uuid) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.abandon_upload(uuid) TO fence_gateway;

-- Announces blobs that a gateway keeps ready. It works as objects.begin_upload, but without the check of a grant, for there is
-- none yet; and the COMMIT is durable, since many uploads would be refused if a crash undid it. The sweep takes a reserve that
-- its gateway loses, or keeps for too long, as it takes any upload that was begun and never completed. It may be repeated.
CREATE OR REPLACE FUNCTION objects.reserve_blobs(p_blobs uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  INSERT INTO objects.blobs (id) SELECT unnest(p_blobs) ON CONFLICT DO NOTHING;
END $$;
REVOKE ALL ON FUNCTION objects.reserve_blobs(uuid[]) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.reserve_blobs(uuid[]) TO fence_gateway;

-- Takes back blobs of objects.reserve_blobs that no upload was given. Returns those that it took: only their places may be
-- deleted. A copy of the gateway's process (a machine restored from a snapshot) may have used the others.
CREATE OR REPLACE FUNCTION objects.return_blobs(p_blobs uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  RETURN QUERY DELETE FROM objects.blobs b WHERE b.id = ANY (p_blobs) AND b.state = 'pending' RETURNING b.id;
END $$;
REVOKE ALL ON FUNCTION objects.return_blobs(uuid[]) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.return_blobs(uuid[]) TO fence_gateway;

-- Locks and returns the current version of a key; NULLs if there is none. p_if_match: the ETag that it must have; '*' for any;
-- '!' and an ETag that an existing version must not have.
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
REVOKE ALL ON FUNCTION objects.lock_pointer(text, text, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns whether any version of an origin is current or kept. Two look-ups by an index each, whatever the tables' sizes were
-- when the session planned them.
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
REVOKE ALL ON FUNCTION objects.is_named(uuid) FROM PUBLIC, fence_writer, fence_gateway;

-- Supersedes the blobs of a version that is gone, unless another version lists them. Two statements: the second reads under the
-- lock. The sweep's grace counts from the change and not from its transaction's start, which for a publication may be long
-- before: otherwise readers, replicas and a caller that restores the version would lose the grace.
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
REVOKE ALL ON FUNCTION objects.supersede(uuid) FROM PUBLIC, fence_writer, fence_gateway;

-- Keeps a version that has stopped being current, or supersedes its blobs. Refuses before its retention ends.
CREATE OR REPLACE FUNCTION objects.retire(p_bucket text, p_version uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  b record;
  keeps boolean;
BEGIN
  SELECT x.keep_count, x.retention INTO b FROM objects.buckets x WHERE x.name = p_bucket;
  keeps := FOUND AND b.keep_count IS DISTINCT FROM 0;
  IF b.retention IS NOT NULL THEN
    PERFORM objects.check_retained(p_bucket, p_version);
  END IF;
  IF keeps THEN
    UPDATE objects.versions SET kept_order = nextval('objects.kept_order'), kept_at = clock_timestamp() WHERE id = p_version;
  ELSE
    PERFORM objects.supersede(p_version);
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.retire(text, uuid) FROM PUBLIC, fence_writer, fence_gateway;

-- Makes a version current and retires the previous one. The conditions are judged while the pointer is locked.
CREATE OR REPLACE FUNCTION objects.make_current(made objects.versions, p_if_match text, p_if_none_match boolean) RETURNS void
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
  END LOOP;   -- another writer created it in between: read it
END $$;
REVOKE ALL ON FUNCTION objects.make_current(objects.versions, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;

-- Commits an upload: the fence check and the swap of the pointer in one transaction. A repeated call with the same version, or
-- another attempt of the same invocation, returns the first answer and changes nothing, so it also resolves a commit whose
-- outcome was lost. Returns the version that the request produced.
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
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  -- The blobs' rows serialise the attempts of one commit: one that is under way in another session ends first.
  PERFORM 1 FROM objects.blobs WHERE id = ANY (p_blobs) ORDER BY id FOR UPDATE;
  done := objects.earlier_attempt(p_bucket, p_key, p_version, p_invocation);
  IF done.id IS NULL THEN
    p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
    INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, holder, invocation_id)
    VALUES (p_version, p_bucket, p_key, p_blobs, p_blob_sizes, (SELECT sum(s) FROM unnest(p_blob_sizes) s), p_etag, p_attributes,
            p_resource, p_token, objects.holder_of(p_resource), p_invocation)
    ON CONFLICT DO NOTHING RETURNING * INTO made;
    IF made.id IS NULL THEN   -- another attempt committed between the look and the INSERT
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
REVOKE ALL ON FUNCTION objects.commit_upload(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.commit_upload(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, text, boolean) TO fence_gateway;

