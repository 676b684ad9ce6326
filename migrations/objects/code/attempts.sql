-- Repeated requests. A client whose answer was lost sends its request again, as another attempt with the same invocation id; the
-- gateway does so to PostgreSQL. An attempt first looks for the effect of an earlier one, and returns that one's answer, even if
-- the grant is stale or ended by then: "refused" means that nothing was done. The attempts of one request run one at a time: an
-- earlier one that has passed the check commits although the grant was superseded after the check.
--
-- An upload, a deletion, a restoration or a change of tags shows its effect in its own row. The others leave a row in
-- objects.attempts.
--
-- Answers are durable. An attempt that finds an earlier one's effect writes nothing, so its COMMIT waits for no synchronous
-- standby; and the wait of the earlier one may have been cancelled, as when a client gives up. Then the effect is visible here
-- before the standby has it, and a failover undoes it. So a function that answers by such an effect writes something to wait
-- for.

-- Takes the turn among the attempts of one request. Does nothing for a request without an id: its attempts can't be recognised.
-- An advisory lock suffices, because no other client knows the id beforehand.
CREATE OR REPLACE FUNCTION objects.take_turn(p_bucket text, p_key text, p_invocation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_invocation IS NOT NULL THEN
    PERFORM fence.lock(hashtextextended(p_invocation, hashtextextended(p_key, hashtextextended(p_bucket, 0))));
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.take_turn(text, text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Makes the COMMIT wait for the standbys. Called when an earlier attempt's effect is the answer; see the top.
CREATE OR REPLACE FUNCTION objects.answer_lasts() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_logical_emit_message(true, 'fencegate', '');
END $$;
REVOKE ALL ON FUNCTION objects.answer_lasts() FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the version that an earlier attempt made; NULLs if none took effect.
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
    PERFORM objects.answer_lasts();
  END IF;
  RETURN done;
END $$;
REVOKE ALL ON FUNCTION objects.earlier_attempt(text, text, uuid, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the answer of an earlier attempt that made no version; NULL if none took effect.
CREATE OR REPLACE FUNCTION objects.earlier_answer(p_bucket text, p_key text, p_invocation text, p_what text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found jsonb := (SELECT a.answer FROM objects.attempts a
                   WHERE a.bucket = p_bucket AND a.key = p_key AND a.invocation_id = p_invocation AND a.what = p_what);
BEGIN
  IF found IS NOT NULL THEN
    PERFORM objects.answer_lasts();
  END IF;
  RETURN found;
END $$;
REVOKE ALL ON FUNCTION objects.earlier_answer(text, text, text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Records what an attempt did, in its transaction.
CREATE OR REPLACE FUNCTION objects.note_answer(p_bucket text, p_key text, p_invocation text, p_what text, p_answer jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_invocation IS NOT NULL THEN
    INSERT INTO objects.attempts (bucket, key, invocation_id, what, answer) VALUES (p_bucket, p_key, p_invocation, p_what, p_answer);
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.note_answer(text, text, text, text, jsonb) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns what an earlier attempt of a request did, for a gateway that has found a reason to refuse it; NULL if none took effect.
-- p_what is NULL for a version, whose id is the answer's "version". Otherwise it is the recorded answer.
CREATE OR REPLACE FUNCTION objects.earlier_result(p_bucket text, p_key text, p_invocation text, p_what text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  version uuid;
BEGIN
  PERFORM objects.begin_change();
  PERFORM objects.take_turn(p_bucket, p_key, p_invocation);
  IF p_what IS NOT NULL THEN
    RETURN objects.earlier_answer(p_bucket, p_key, p_invocation, p_what);
  END IF;
  version := (objects.earlier_attempt(p_bucket, p_key, NULL, p_invocation)).id;
  RETURN CASE WHEN version IS NOT NULL THEN jsonb_build_object('version', version) END;
END $$;
REVOKE ALL ON FUNCTION objects.earlier_result(text, text, text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.earlier_result(text, text, text, text) TO fence_gateway;
