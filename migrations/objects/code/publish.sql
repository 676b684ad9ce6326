-- Rows and files together: a client may stage an upload, which is then invisible, and a writer's own transaction makes it
-- visible together with the rows that it writes, under the one grant of both:
--   BEGIN;
--   SELECT fence.use('reports/2026-11.csv', '34.<seal>');
--   INSERT INTO report_rows ...;
--   SELECT * FROM fence.publish('<stage id>');
--   COMMIT;
--
-- A stage is a row that only the gateway inserts, when it has stored and hashed the bytes. Its blobs stay pending, so the sweep
-- condemns them by age like those of any upload that was begun and never completed. The first to change a blob's row, a
-- publication or the sweep, wins. Publishing deletes the row, and the version has its id.
--
-- A publication checks, then reads, as every guard does. At REPEATABLE READ and SERIALIZABLE it locks every row that it relies
-- on, so that a row that has changed since the snapshot raises 40001. Lock order: blobs by id, buckets by name, grants by
-- resource, pointers by bucket and key.
--
--   ZO010 no such stage        ZO011 it was published already

-- Returns whether a stage is published, or can be.
CREATE OR REPLACE FUNCTION objects.stage_stands(p_stage uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM objects.versions v WHERE v.id = p_stage)
      OR EXISTS (SELECT FROM objects.stages s WHERE s.id = p_stage AND cardinality(s.blobs) =
                   (SELECT count(*) FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state = 'pending'));
END $$;
REVOKE ALL ON FUNCTION objects.stage_stands(uuid) FROM PUBLIC, fence_writer, fence_gateway;

-- Records an upload whose bytes are stored. Returns the stage that the request made. If an earlier attempt had the same content,
-- that is its stage, and these bytes are given up; unless that stage was given up itself: then this attempt counts as the first.
CREATE OR REPLACE FUNCTION objects.stage_upload(
  p_stage uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_if_match text, p_if_none_match boolean, p_invocation text
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  done jsonb;
  n integer;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  PERFORM 1 FROM objects.blobs b WHERE b.id = ANY (p_blobs) ORDER BY b.id FOR UPDATE;   -- serialises the attempts of one stage
  IF objects.stage_stands(p_stage) THEN
    PERFORM objects.answer_lasts();
    RETURN p_stage;
  END IF;
  done := objects.earlier_answer(p_bucket, p_key, p_invocation, 'stage');
  IF done ->> 'etag' <> p_etag THEN
    RAISE EXCEPTION 'this invocation id was used for another request' USING ERRCODE = 'ZO006';
  ELSIF objects.stage_stands((done ->> 'stage')::uuid) THEN
    UPDATE objects.blobs b SET state = 'condemned', changed_at = now()
     WHERE b.id = ANY (p_blobs) AND b.state = 'pending' AND (done ->> 'stage')::uuid <> p_stage;
    RETURN done ->> 'stage';
  END IF;
  p_token := objects.authorize(p_bucket, p_key, p_resource, p_token, p_seal);
  UPDATE objects.blobs b SET changed_at = now() WHERE b.id = ANY (p_blobs) AND b.state = 'pending';   -- its age counts from now
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(p_blobs) THEN
    RAISE EXCEPTION 'the upload was given up before it was complete' USING ERRCODE = 'ZO004';
  END IF;
  INSERT INTO objects.stages (id, bucket, key, blob, blobs, blob_sizes, etag, attributes, resource, token, if_match, if_none_match)
  VALUES (p_stage, p_bucket, p_key, p_blobs[1], p_blobs, p_blob_sizes, p_etag, p_attributes, CASE WHEN p_token = 0 THEN '' ELSE p_resource END,
          p_token, p_if_match, p_if_none_match);
  DELETE FROM objects.attempts a WHERE a.bucket = p_bucket AND a.key = p_key AND a.invocation_id = p_invocation AND a.what = 'stage';
  PERFORM objects.note_answer(p_bucket, p_key, p_invocation, 'stage', jsonb_build_object('stage', p_stage, 'etag', p_etag));
  RETURN p_stage;
END $$;
REVOKE ALL ON FUNCTION objects.stage_upload(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, boolean, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.stage_upload(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, boolean, text) TO fence_gateway;

-- Stages a multipart upload instead of completing it: its id becomes the stage's. The parts that are not listed are given up.
CREATE OR REPLACE FUNCTION objects.stage_multipart(
  p_upload uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb,
  p_resource text, p_token bigint, p_seal bytea, p_if_match text, p_if_none_match boolean
) RETURNS objects.stages
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made objects.stages;
BEGIN
  PERFORM objects.begin_change();
  IF NOT objects.end_upload(p_upload, p_bucket, p_key) AND NOT EXISTS (SELECT FROM objects.stages s WHERE s.id = p_upload AND s.bucket = p_bucket AND s.key = p_key) THEN
    RAISE EXCEPTION 'there is no such upload' USING ERRCODE = 'ZO008';
  END IF;
  PERFORM objects.stage_upload(p_upload, p_bucket, p_key, p_blobs, p_blob_sizes, p_etag, p_attributes, p_resource, p_token, p_seal,
                               p_if_match, p_if_none_match, NULL);
  SELECT * INTO made FROM objects.stages s WHERE s.id = p_upload;
  UPDATE objects.blobs b SET state = 'condemned', changed_at = now() FROM objects.parts p
   WHERE p.upload = p_upload AND b.id = p.blob AND b.state = 'pending' AND b.id <> ALL (p_blobs);
  DELETE FROM objects.parts p WHERE p.upload = p_upload;
  DELETE FROM objects.uploads u WHERE u.id = p_upload;
  RETURN made;
END $$;
REVOKE ALL ON FUNCTION objects.stage_multipart(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.stage_multipart(uuid, text, text, uuid[], bigint[], text, jsonb, text, bigint, bytea, text, boolean) TO fence_gateway;

-- Checks the grants that the transaction presents, for a write that needs p_needed under a rule of p_mode. Keeps the lock of the
-- one that fits to the end of the transaction, as every guarded write does.
CREATE OR REPLACE FUNCTION objects.verify_presented(p_needed text, p_mode text) RETURNS fence.verdict
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := fence.resource_fault(p_needed);
  v fence.verdict;
BEGIN
  IF fault IS NOT NULL THEN   -- the check would read '*' at the end as a pattern
    RETURN fence.refusal('ZF003', 'resource ' || fault, left(p_needed, 512), NULL, NULL);
  END IF;
  v := fence.verify_settings(p_needed);
  IF v.state IS NULL AND p_mode = 'monotone' AND EXISTS (SELECT FROM fence.resources r WHERE r.resource = p_needed AND r.seal IS NOT NULL) THEN
    RETURN fence.refusal('ZF003', 'the rule monotone takes tokens without a seal', p_needed, v.token, v.token);
  END IF;
  RETURN v;
END $$;
REVOKE ALL ON FUNCTION objects.verify_presented(text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Checks that the grant that staged the upload is presented and current, and is the one that the rule of its key needs now;
-- refuses otherwise.
CREATE OR REPLACE FUNCTION objects.authorize_stage(s objects.stages) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule record;
  needed text;
  v fence.verdict;
BEGIN
  SELECT * INTO rule FROM objects.rule_of(s.bucket, s.key);
  needed := CASE WHEN rule.mode = 'none' THEN s.resource ELSE objects.resource_of(s.bucket, rule.depth, s.key) END;
  IF rule.mode IS NULL THEN
    RAISE EXCEPTION 'there is no bucket %', s.bucket USING ERRCODE = 'ZO001';
  ELSIF needed <> s.resource THEN
    v := fence.refusal('ZF004', format('the upload was staged under "%s", but the rule of its key needs "%s" now', s.resource, needed),
                       s.resource, s.token, NULL, needed, 'Stage the upload again.');
  ELSIF s.token = 0 THEN
    RETURN;   -- the rule needed no grant, and needs none now
  ELSE
    v := objects.verify_presented(needed, rule.mode);
    IF v.state IS NULL AND v.token <> s.token THEN
      v := fence.refusal('ZF001', format('the upload was staged under token %s of "%s": the fence stands at %s', s.token, needed, v.token),
                         needed, s.token, v.token, NULL, 'Stage the upload again.');
    END IF;
  END IF;
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.authorize_stage(objects.stages) FROM PUBLIC, fence_writer, fence_gateway;

-- At REPEATABLE READ and SERIALIZABLE: locks a key's pointer and the versions that share its blobs, or raises 40001 if one has
-- changed since the snapshot. Those versions decide whether the bytes become superseded when the current version stops being
-- current.
CREATE OR REPLACE FUNCTION objects.lock_current(p_bucket text, p_key text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root uuid;
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    PERFORM 1 FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = p_key FOR UPDATE;
    SELECT coalesce(o.origin, o.id) INTO root FROM objects.pointers p JOIN objects.versions o ON o.id = p.version
     WHERE p.bucket = p_bucket AND p.key = p_key;
    PERFORM 1 FROM objects.versions v WHERE v.id = root OR v.origin = root ORDER BY v.id FOR SHARE;
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.lock_current(text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Makes one stage the current version of its key. The caller has locked its blobs and its bucket, and has checked its grant.
CREATE OR REPLACE FUNCTION objects.publish_one(s objects.stages) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made objects.versions;
  n integer;
BEGIN
  UPDATE objects.blobs b SET state = 'live', version = s.id, changed_at = now() WHERE b.id = ANY (s.blobs) AND b.state = 'pending';
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(s.blobs) THEN
    RAISE EXCEPTION 'the staged upload % was given up before it was published', s.id USING ERRCODE = 'ZO004',
      HINT = 'It was staged too long ago. Stage the upload again.';
  END IF;
  DELETE FROM objects.stages x WHERE x.id = s.id;
  INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token, holder)
  VALUES (s.id, s.bucket, s.key, s.blobs, s.blob_sizes, (SELECT sum(x) FROM unnest(s.blob_sizes) x), s.etag, s.attributes,
          s.resource, s.token, objects.holder_of(s.resource)) RETURNING * INTO made;
  PERFORM objects.lock_current(s.bucket, s.key);
  PERFORM objects.make_current(made, s.if_match, s.if_none_match);
END $$;
REVOKE ALL ON FUNCTION objects.publish_one(objects.stages) FROM PUBLIC, fence_writer, fence_gateway;

-- Publishes staged uploads in the current transaction, all or none. Of two of one key the later one in the list becomes current.
CREATE OR REPLACE FUNCTION objects.publish(p_stages uuid[], p_if_match text, p_if_none_match boolean) RETURNS SETOF objects.stages
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  missing uuid;
  s objects.stages;
BEGIN
  PERFORM fence.commit_durably();
  PERFORM 1 FROM objects.blobs b WHERE b.id IN (SELECT unnest(x.blobs) FROM objects.stages x WHERE x.id = ANY (p_stages)) ORDER BY b.id FOR UPDATE;
  -- A change of a rule locks the bucket's row exclusively, and makes a new version of it.
  PERFORM 1 FROM objects.buckets b WHERE b.name IN (SELECT x.bucket FROM objects.stages x WHERE x.id = ANY (p_stages)) ORDER BY b.name FOR SHARE;
  SELECT i INTO missing FROM unnest(p_stages) i WHERE NOT EXISTS (SELECT FROM objects.stages x WHERE x.id = i) LIMIT 1;
  IF FOUND AND EXISTS (SELECT FROM objects.versions v WHERE v.id = missing) THEN
    RAISE EXCEPTION 'the staged upload % was published already', missing USING ERRCODE = 'ZO011',
      HINT = 'An earlier attempt of this transaction was committed, or this one has published it. Do not write its rows again.';
  ELSIF FOUND OR p_stages IS NULL THEN
    RAISE EXCEPTION 'there is no staged upload %', missing USING ERRCODE = 'ZO010',
      HINT = 'It was given up, or never staged. If it was staged after this transaction began, begin a new one.';
  END IF;
  FOR s IN SELECT x.* FROM objects.stages x WHERE x.id = ANY (p_stages) ORDER BY x.resource, x.id LOOP
    PERFORM objects.authorize_stage(s);
  END LOOP;
  FOR s IN SELECT x.* FROM objects.stages x WHERE x.id = ANY (p_stages) ORDER BY x.bucket, x.key, array_position(p_stages, x.id) LOOP
    IF p_if_match <> s.if_match THEN
      RAISE EXCEPTION 'the upload was staged with another If-Match' USING ERRCODE = 'ZO002', DETAIL = 'If-Match';
    END IF;
    s.if_match := coalesce(s.if_match, p_if_match);
    s.if_none_match := s.if_none_match OR p_if_none_match;
    PERFORM objects.publish_one(s);
    RETURN NEXT s;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION objects.publish(uuid[], text, boolean) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns an ETag that an object must have, as a writer named it. Refuses a malformed one, also for a key that does not exist.
CREATE OR REPLACE FUNCTION objects.wanted_etag(p_etag text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF starts_with(p_etag, '!') THEN
    RAISE EXCEPTION 'if_match is %, and no ETag begins with "!"', p_etag USING ERRCODE = 'invalid_parameter_value',
      HINT = 'Name the ETag that the object must have, without quotes, or * for any.';
  END IF;
  RETURN p_etag;
END $$;
REVOKE ALL ON FUNCTION objects.wanted_etag(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Publishes one staged upload, under the grant that it was staged with and that this transaction presents; see the top. A second
-- publication is refused, so a transaction that is repeated because its outcome was lost writes nothing twice. The conditions
-- are those of S3, in addition to those that the upload was staged with: if_match is the ETag that the key must have, without
-- quotes, or '*' for any; if_none_match: there must be no such key.
CREATE OR REPLACE FUNCTION fence.publish(stage uuid, if_match text DEFAULT NULL, if_none_match boolean DEFAULT false)
RETURNS TABLE (bucket text, key text, etag text, size bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT p.bucket, p.key, p.etag, (SELECT sum(n)::bigint FROM unnest(p.blob_sizes) n)
    FROM objects.publish(ARRAY[publish.stage], objects.wanted_etag(publish.if_match), coalesce(publish.if_none_match, false)) p
$$;
REVOKE ALL ON FUNCTION fence.publish(uuid, text, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.publish(uuid, text, boolean) TO fence_writer;

-- Publishes several, all or none, in a lock order in which two such transactions do not deadlock.
CREATE OR REPLACE FUNCTION fence.publish_all(stages uuid[]) RETURNS TABLE (stage uuid, bucket text, key text, etag text, size bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT p.id, p.bucket, p.key, p.etag, (SELECT sum(n)::bigint FROM unnest(p.blob_sizes) n)
    FROM objects.publish(publish_all.stages, NULL, false) p
$$;
REVOKE ALL ON FUNCTION fence.publish_all(uuid[]) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.publish_all(uuid[]) TO fence_writer;

-- Removes an object in the current transaction, under the presented grant of the resource that the key needs; under any grant if
-- the rule is `none`. Returns whether the object existed. If the bucket keeps versions, this is a deletion that can be undone.
CREATE OR REPLACE FUNCTION fence.unpublish(bucket text, key text, if_match text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule record;
  needed text;
  v fence.verdict;
  made objects.versions;
  old objects.pointers;
BEGIN
  IF octet_length(unpublish.key) NOT BETWEEN 1 AND 1024 THEN
    RAISE EXCEPTION 'key has % bytes; it must have 1 to 1024', octet_length(unpublish.key) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.commit_durably();
  PERFORM 1 FROM objects.buckets b WHERE b.name = unpublish.bucket FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', unpublish.bucket USING ERRCODE = 'ZO001';
  END IF;
  SELECT * INTO rule FROM objects.rule_of(unpublish.bucket, unpublish.key);
  needed := CASE WHEN rule.mode = 'none' THEN '' ELSE objects.resource_of(unpublish.bucket, rule.depth, unpublish.key) END;
  v := CASE WHEN rule.mode = 'none' THEN fence.verify_settings(NULL) ELSE objects.verify_presented(needed, rule.mode) END;
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  PERFORM objects.lock_current(unpublish.bucket, unpublish.key);
  PERFORM objects.lock_pointer(unpublish.bucket, unpublish.key, objects.wanted_etag(unpublish.if_match), false);
  INSERT INTO objects.versions (id, bucket, key, deletion, blobs, blob_sizes, size, etag, resource, token, holder)
  VALUES (gen_random_uuid(), unpublish.bucket, unpublish.key, true, '{}', '{}', 0, '', needed, CASE WHEN needed = '' THEN 0 ELSE v.token END,
          objects.holder_of(needed)) RETURNING * INTO made;
  DELETE FROM objects.pointers p WHERE p.bucket = unpublish.bucket AND p.key = unpublish.key RETURNING * INTO old;
  PERFORM objects.retire(made.bucket, old.version);
  PERFORM objects.retire(made.bucket, made.id);   -- after the rows that it deletes
  RETURN old.version IS NOT NULL;
END $$;
REVOKE ALL ON FUNCTION fence.unpublish(text, text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.unpublish(text, text, text) TO fence_writer;

-- Returns the state of a staged upload: 'staged', 'published', or 'gone' (given up, or never staged). Waits for a publication
-- under way, so it resolves a COMMIT that was not answered, also after a crash. Needs the id, and no grant. 'published' waits,
-- at its own COMMIT, for the standbys that the publication may not have waited for.
CREATE OR REPLACE FUNCTION fence.staged(stage uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'fence.staged needs READ COMMITTED: it tells what others have committed until now' USING ERRCODE = 'invalid_transaction_state';
  END IF;
  PERFORM 1 FROM objects.blobs b WHERE b.id IN (SELECT unnest(s.blobs) FROM objects.stages s WHERE s.id = staged.stage) ORDER BY b.id FOR SHARE;
  IF EXISTS (SELECT FROM objects.versions v WHERE v.id = staged.stage) THEN
    PERFORM fence.commit_durably();
    PERFORM objects.answer_lasts();
    RETURN 'published';
  END IF;
  RETURN CASE
    WHEN EXISTS (SELECT FROM objects.stages s WHERE s.id = staged.stage
                    AND NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state <> 'pending')) THEN 'staged'
    ELSE 'gone' END;
END $$;
REVOKE ALL ON FUNCTION fence.staged(uuid) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.staged(uuid) TO fence_writer;
