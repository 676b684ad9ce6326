SET ROLE fence_owner;

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

CREATE OR REPLACE FUNCTION fence.refusal(p_state text, p_message text, p_resource text, p_presented bigint, p_recorded bigint,
                              p_needed text DEFAULT NULL, p_advice text DEFAULT NULL, p_held_by text DEFAULT NULL)
RETURNS fence.verdict LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ROW(NULL, p_state, p_message,
    json_strip_nulls(json_build_object('resource', p_resource, 'presented', p_presented::text, 'recorded', p_recorded::text,
                                       'needed', p_needed, 'held_by', p_held_by))::text,
    concat_ws(' ', CASE p_state
      WHEN 'ZF001' THEN 'A newer holder has taken over. Stop; acquire the resource again and start from what it wrote.'
      WHEN 'ZF002' THEN 'Acquire a lease and present its grant with the write.'
      WHEN 'ZF003' THEN 'Present the token and seal exactly as they were issued, or acquire the resource again.'
      WHEN 'ZF004' THEN 'Acquire the resource that the write needs.'
      WHEN 'ZF005' THEN 'End the transactions that still hold the resource, then acquire again.'
    END, p_advice))::fence.verdict
$$;

CREATE OR REPLACE FUNCTION fence.verify(p_resource text, p_token bigint, p_seal_hash bytea, p_kind text) RETURNS fence.verdict
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  held bigint;
  wanted bigint;
  waited numeric := 0;
  v fence.verdict;
  stale boolean := false;
  open boolean := p_kind = 'unsealed' AND fence.accepts_unsealed(p_resource);
  snapshot boolean := current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted');
  never text := format('fencing token %s was never issued for "%s" with the presented seal', p_token, p_resource);
  advice text := CASE WHEN snapshot THEN
    'If it was issued after this transaction began, begin a new transaction: this one cannot see what the last holder wrote.' END;
BEGIN
  LOOP
    SELECT token, seal, xmax = '0'::xid AS untouched INTO f FROM fence.resources WHERE resource = p_resource;

    IF open AND (f.token IS NULL OR f.token < p_token) THEN
      -- Who may not use fence.use may not raise by way of a guarded table either. Tokens stay below 2^53 here, so that nobody
      -- leaves a resource without a next one.
      IF p_token >= 9007199254740992 OR NOT pg_has_role(session_user, 'fence_writer', 'MEMBER') THEN
        RETURN fence.refusal('ZF003', never, p_resource, p_token, f.token, NULL,
                             'Unsealed tokens raise a fence up to 9007199254740991, and for logins that are fence_writer.');
      END IF;
      v := fence.raise_unsealed(p_resource, p_token);
      IF v.state IS NOT NULL THEN
        RETURN v;
      END IF;
      CONTINUE;
    ELSIF f.token IS NULL OR p_token > f.token THEN
      RETURN fence.refusal('ZF003', never, p_resource, p_token, f.token, NULL, advice);
    ELSIF p_token < f.token AND (p_token > 0 OR f.seal IS DISTINCT FROM p_seal_hash) THEN
      -- A seal without its token that is not the recorded one: superseded, as far as anybody can tell.
      RETURN fence.refusal('ZF001', format('stale fencing token %s for "%s": the fence stands at %s', p_token, p_resource, f.token),
                           p_resource, p_token, f.token);
    ELSIF p_kind = 'sealed' AND f.seal IS DISTINCT FROM p_seal_hash
       OR p_kind = 'unsealed' AND (f.seal IS NOT NULL OR NOT open) THEN
      RETURN fence.refusal('ZF003', never, p_resource, p_token, f.token, NULL, advice);
    END IF;

    -- It looks current. It is, once the same is read while its key is held. Whoever holds the key exclusively is about to
    -- supersede the grant, or is a stranger: so look again, now and then, and not for ever.
    wanted := fence.key(p_resource, f.token, f.seal);
    EXIT WHEN held = wanted;
    IF pg_try_advisory_xact_lock_shared(wanted) OR fence.lock_within(wanted, false, 100) THEN
      held := wanted;
      CONTINUE;
    END IF;
    waited := waited + 100;
    stale := snapshot AND NOT fence.is_newest(p_resource);
    EXIT WHEN stale;
    IF waited >= fence.patience() THEN
      RETURN fence.refusal('ZF005', format('the lock of grant %s of "%s" is held by %s, which is no writer', f.token, p_resource, fence.holders_named(wanted)),
                           p_resource, p_token, f.token, NULL, NULL, fence.holders_named(wanted));
    END IF;
  END LOOP;

  IF stale OR snapshot AND NOT f.untouched AND NOT fence.is_newest(p_resource) THEN
    RETURN fence.refusal('ZF001', format('stale fencing token %s for "%s": the fence was raised after this transaction''s snapshot',
                                         p_token, p_resource), p_resource, p_token, NULL, NULL,
      CASE WHEN current_setting('transaction_read_only')::boolean THEN
        'If the raise was rolled back, a read-only transaction can tell at READ COMMITTED only.' END);
  END IF;
  RETURN ROW(f.token, NULL, NULL, NULL, NULL)::fence.verdict;
END $$;

CREATE OR REPLACE FUNCTION fence.verify_settings(p_needed text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  below text := CASE WHEN right(p_needed, 1) = '*' THEN left(p_needed, -1) END;
  listed text := coalesce(current_setting('fence.grants', true), '');
  settings text[] := ARRAY[coalesce(current_setting('fence.resource', true), '')];
  tokens text[] := ARRAY[coalesce(current_setting('fence.token', true), '')];
  names text[] := '{}';
  name text;
  fault text;
  v fence.verdict;
  first fence.verdict;
  i int;
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN fence.refusal('55000', 'a standby may be behind the fence, so a grant can''t be checked here', NULL, NULL, NULL, NULL,
                         'Present the grant to the primary.');
  END IF;
  IF settings[1] = '' OR tokens[1] = '' THEN
    settings := '{}';
    tokens := '{}';
  END IF;
  IF listed <> '' THEN
    IF listed !~ '^[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*$' THEN
      RETURN fence.refusal('ZF003', 'the setting fence.grants is not a list of resource=token, separated by commas', NULL, NULL, NULL);
    END IF;
    SELECT settings || array_agg(split_part(e, '=', 1) ORDER BY n), tokens || array_agg(split_part(e, '=', 2) ORDER BY n)
      INTO settings, tokens FROM unnest(string_to_array(listed, ',')) WITH ORDINALITY x(e, n);
  END IF;
  IF settings = '{}' THEN
    RETURN fence.refusal('ZF002', concat('write without a fencing token', ': it needs a grant of "' || p_needed || '"'),
                         NULL, NULL, NULL, p_needed);
  END IF;

  FOR i IN 1 .. cardinality(settings) LOOP
    name := CASE WHEN strpos(settings[i], '%') > 0 THEN fence.unescape(settings[i]) ELSE settings[i] END;
    IF name IS NULL THEN
      RETURN fence.refusal('ZF003', 'the setting fence.resource is not a percent-encoded name of at most 512 bytes', left(settings[i], 512), NULL, NULL);
    END IF;
    fault := fence.resource_fault(name);
    IF fault IS NOT NULL THEN
      RETURN fence.refusal('ZF003', 'resource ' || fault, left(settings[i], 512), NULL, NULL);
    END IF;
    names := names || name;
  END LOOP;

  FOR i IN SELECT n FROM unnest(names) WITH ORDINALITY x(r, n)
            WHERE p_needed IS NULL OR r = p_needed OR starts_with(r, below) ORDER BY r COLLATE "C", n LOOP
    v := fence.verify_presented(names[i], settings[i], tokens[i]);
    IF v.state IS NOT NULL THEN
      RETURN v;
    END IF;
    IF first IS NULL THEN
      first := v;
    END IF;
  END LOOP;
  IF v IS NULL THEN
    RETURN fence.refusal('ZF004', format('%s for "%s", but the write needs "%s"', CASE WHEN cardinality(names) = 1 THEN 'grant is' ELSE 'grants are' END,
                                         left(array_to_string(names, '", "'), 512), p_needed), left(array_to_string(names, ', '), 512), NULL, NULL, p_needed);
  END IF;
  RETURN first;
END $$;

DROP FUNCTION fence.shown(text);

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 41';
