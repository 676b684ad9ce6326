-- Nonces: one for each run of a process that takes leases by its connection string.
--
-- A pool reconnects by itself, with the same string. So it would get a new token for a program that was superseded and still
-- holds what it read before. Therefore a nonce that has held a resource is armed again only while the fence stands at the token
-- that it armed last: no other holder came in between. After that it is refused (ZF006), for as long as its row exists.
--
-- The look-up and the raise are one transaction that has its turn in fence.arms, so no other arming comes in between.

-- Returns what is known of a nonce. armed is NULL if it never held the resource. The gateway asks in advance, so that no client
-- waits in vain.
CREATE OR REPLACE FUNCTION fence.nonce(p_resource text, p_nonce bytea, OUT armed bigint, OUT recorded bigint, OUT ended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- One statement, one snapshot: an arming that commits between two would make a current nonce look spent.
  SELECT f.token, coalesce(f.ended_at IS NOT NULL, false), n.token INTO recorded, ended, armed
    FROM (SELECT) one
    LEFT JOIN fence.resources f ON f.resource = p_resource
    LEFT JOIN fence.nonces n ON n.resource = p_resource AND n.nonce = p_nonce;
END $$;
REVOKE ALL ON FUNCTION fence.nonce(text, bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.nonce(text, bytea) TO fence_gateway;

-- fence.raise for a nonce: records the nonce's token with the raise. fence.drain follows, as for fence.raise. Raising the same
-- grant again, as after a lost answer, succeeds. Raises ZF006 if the nonce is spent.
CREATE OR REPLACE FUNCTION fence.raise_once(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_nonce bytea,
                                 p_limit interval DEFAULT '5 s', OUT raised boolean, OUT recorded bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  held_by text;
  known record;
  v fence.verdict;
BEGIN
  IF octet_length(p_nonce) IS DISTINCT FROM 32 THEN
    RAISE EXCEPTION 'nonce hash is not 32 bytes long' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();
  IF fence.resource_fault(p_resource) IS NULL THEN   -- otherwise fence.raise reports the fault
    PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND NOT fence.take_turn(p_resource, 1000 * extract(epoch FROM p_limit)) THEN
      held_by := fence.arming_named(p_resource);
      v := fence.refusal('ZF005', format('fence of "%s" was not raised to %s: an earlier raise has not ended: %s', p_resource, p_token, held_by),
                         p_resource, NULL, NULL, NULL, NULL, held_by);
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
    SELECT * INTO known FROM fence.nonce(p_resource, p_nonce);
    IF known.armed IS NOT NULL AND known.armed IS DISTINCT FROM known.recorded THEN
      v := fence.refusal('ZF006', format('nonce is spent: it held "%s" with token %s, and the fence %s', p_resource, known.armed,
                                           coalesce('stands at ' || known.recorded, 'is gone')),
                         p_resource, known.armed, known.recorded);
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
  END IF;
  SELECT r.raised, r.recorded INTO raised, recorded FROM fence.raise(p_resource, p_token, p_seal_hash, p_holder, p_limit) r;
  IF raised THEN
    INSERT INTO fence.nonces AS n (resource, nonce, token, seal, armed_at) VALUES (p_resource, p_nonce, p_token, p_seal_hash, now())
    ON CONFLICT ON CONSTRAINT nonces_pkey DO UPDATE SET token = excluded.token, seal = excluded.seal, armed_at = excluded.armed_at;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.raise_once(text, bigint, bytea, text, bytea, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.raise_once(text, bigint, bytea, text, bytea, interval) TO fence_gateway;

-- Returns the token of a grant that was presented by its seal alone, as a lease by the connection string is, if a nonce armed it
-- last. For people.
CREATE OR REPLACE FUNCTION fence.token_of(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS bigint LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN p_token > 0 THEN p_token
              ELSE coalesce((SELECT n.token FROM fence.nonces n WHERE n.resource = p_resource AND n.seal = p_seal_hash), p_token) END
$$;
REVOKE ALL ON FUNCTION fence.token_of(text, bigint, bytea) FROM PUBLIC, fence_writer, fence_gateway;

-- Deletes the nonces that armed nothing since p_before. Returns how many. Safe if every process that began before p_before has
-- ended: each deleted nonce is of such a process. A process that still runs would count as a new one. For the owner only.
CREATE OR REPLACE FUNCTION fence.forget_nonces(p_before timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  forgotten bigint;
BEGIN
  IF p_before IS NULL OR p_before > now() - interval '1 day' THEN
    RAISE EXCEPTION 'nonces of the last day are not forgotten: their processes may still run' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM fence.nonces n WHERE n.armed_at < p_before;
  GET DIAGNOSTICS forgotten = ROW_COUNT;
  RETURN forgotten;
END $$;
REVOKE ALL ON FUNCTION fence.forget_nonces(timestamp with time zone) FROM PUBLIC, fence_writer, fence_gateway;
