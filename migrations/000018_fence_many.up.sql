-- Several grants in one transaction, and several fences raised in one.
--
--   SELECT fence.use(ARRAY['orders/1001', 'users/7'], ARRAY['34.<seal>', '2.<seal>']);
--
-- The list travels in a setting of its own, fence.grants: 'orders/1001=34.<seal>,users/7=2.<seal>', each resource
-- percent-encoded so that it holds no '%', '=' or ','. It may come with the connection, as fence.resource and fence.token may;
-- where all three are set, all grants in them are presented. fence.use replaces whatever was presented before.
--
-- THE way to check a write, for every guard there is: fence.verify_settings(needed). `needed` is the resource that the write
-- needs; 'orders/*' for any resource below 'orders/'; NULL for whatever is presented. It finds the grant among those presented,
-- checks it, and keeps its lock to the end of the transaction; the verdict has state NULL, or the refusal to raise. A guard
-- with a resource per row calls it once for each resource that the statement touched. Guards may try fence.fast_check first,
-- where fence.resource is exactly the resource that is needed, and nowhere else.
--
-- Whoever takes locks of several resources takes them in the order of the names' bytes, so that two can't wait for each other.
SET ROLE fence_owner;

-- Decides on one grant as it was presented, for a name that is decoded and well-formed. p_setting is the name as it was
-- presented, '' where it must not go the fast way.
CREATE FUNCTION fence.verify_presented(p_resource text, p_setting text, p_presented text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  number text := split_part(p_presented, '.', 1);
  seal text := CASE WHEN strpos(p_presented, '.') > 0 THEN substr(p_presented, strpos(p_presented, '.') + 1) END;
  fault text := CASE
    WHEN number = '' THEN 'is empty'
    WHEN number !~ '^[0-9]+$' THEN 'is not a decimal number'
    WHEN number = '0' AND seal IS NULL THEN 'is 0; tokens start at 1'
    WHEN number ~ '^0.' THEN 'has a leading zero'
    WHEN length(number) > 19 OR number::numeric > 9223372036854775807 THEN 'is over the int64 range'
  END;
  recorded bigint;
BEGIN
  IF fault IS NOT NULL THEN
    RETURN fence.refusal('ZF003', 'token ' || fault, p_resource, NULL, NULL);
  ELSIF seal !~ '^[0-9a-f]{32}$' THEN
    RETURN fence.refusal('ZF003', 'seal is not 32 lower-case hexadecimal digits', p_resource, number::bigint, NULL);
  ELSIF seal IS NOT NULL AND p_setting <> '' THEN
    recorded := fence.fast_check(p_setting, p_presented);
    IF recorded IS NOT NULL THEN
      RETURN ROW(recorded, NULL, NULL, NULL, NULL)::fence.verdict;
    END IF;
  END IF;
  RETURN fence.verify(p_resource, number::bigint, sha256(convert_to(seal, 'UTF8')), CASE WHEN seal IS NULL THEN 'unsealed' ELSE 'sealed' END);
END $$;
REVOKE ALL ON FUNCTION fence.verify_presented(text, text, text) FROM PUBLIC;

-- Decides on the settings as they are, for a write that needs p_needed: a resource; 'orders/*' for any resource below
-- 'orders/'; NULL for whatever is presented. Of several grants that fit, each must be current. The verdict is the recorded
-- token (of the first one), or ZF001 to ZF005.
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

-- Presents a grant for the rest of this transaction, instead of what was presented before, and checks it now. The resource is
-- the plain name. Returns the recorded token.
CREATE OR REPLACE FUNCTION fence.use(resource text, token text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  setting pg_catalog.text := pg_catalog.set_config('fence.resource', pg_catalog.replace(resource, '%', '%25'), true);
  presented pg_catalog.text := pg_catalog.set_config('fence.token', token, true);
  recorded pg_catalog.int8 := CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN fence.fast_check(setting, presented) END;
  v fence.verdict;
BEGIN
  IF pg_catalog.current_setting('fence.grants', true) OPERATOR(pg_catalog.<>) '' THEN
    PERFORM pg_catalog.set_config('fence.grants', '', true);
  END IF;
  IF recorded IS NULL THEN
    v := fence.verify_settings(NULL);
    IF v.state IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
    recorded := v.token;
  END IF;
  RETURN recorded;
END $$;

-- Presents several grants for the rest of this transaction, instead of what was presented before, and checks each now.
-- Resources are plain names, each once, and tokens are in the same order. Returns the number of grants.
CREATE FUNCTION fence.use(resources text[], tokens text[]) RETURNS int LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := CASE
    WHEN coalesce(cardinality(resources), 0) = 0 THEN 'resources are missing'
    WHEN cardinality(tokens) IS DISTINCT FROM cardinality(resources) THEN 'tokens are not as many as resources'
    WHEN array_position(resources, NULL) > 0 OR array_position(tokens, NULL) > 0 THEN 'a resource or a token is NULL'
    WHEN (SELECT count(DISTINCT r) < count(*) FROM unnest(resources) r) THEN 'resources name one resource twice'
    WHEN '' = ANY (resources) THEN 'resource is empty'
    WHEN EXISTS (SELECT FROM unnest(tokens) x WHERE x !~ '^[^=,]+$') THEN 'a token is malformed'
  END;
  v fence.verdict;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM set_config('fence.resource', '', true), set_config('fence.token', '', true),
          set_config('fence.grants', (SELECT string_agg(replace(replace(replace(r, '%', '%25'), ',', '%2C'), '=', '%3D') || '=' || k, ',')
                                        FROM unnest(resources, tokens) x(r, k)), true);
  v := fence.verify_settings(NULL);
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN cardinality(resources);
END $$;
REVOKE ALL ON FUNCTION fence.use(text[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.use(text[], text[]) TO fence_writer;

-- Phase 1 of arming several resources: raises all of them or none, in one transaction; see fence.raise. Where one recorded
-- token is not lower, raised is false, and `resource` and `recorded` say which. That is looked at before anything is changed: a
-- raise that is rolled back would leave xmax <> 0 and send every check down the slow path. Waits at most p_limit in all.
CREATE FUNCTION fence.raise_all(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_holders text[], p_limit interval DEFAULT '5 s',
                                OUT raised boolean, OUT resource text, OUT recorded bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  until timestamptz := clock_timestamp() + p_limit;
  a record;
  r record;
  held_by text;
  v fence.verdict;
  fault text := CASE
    WHEN coalesce(cardinality(p_resources), 0) = 0 THEN 'resources are missing'
    WHEN ARRAY[cardinality(p_tokens), cardinality(p_seal_hashes), cardinality(p_holders)] <> array_fill(cardinality(p_resources), ARRAY[3])
      THEN 'tokens, seal hashes and holders are not as many as resources'
    WHEN (SELECT count(DISTINCT x) < count(*) FROM unnest(p_resources) x) THEN 'resources name one resource twice'
    ELSE (SELECT min('resource ' || fence.resource_fault(x)) FROM unnest(p_resources) x)
  END;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fence.need_read_committed();

  -- The turn of each, in order. From then on nobody else changes these rows.
  FOR a IN SELECT x.r FROM unnest(p_resources) x(r) ORDER BY x.r COLLATE "C" LOOP
    PERFORM FROM fence.arms w WHERE w.resource = a.r FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND NOT fence.take_turn(a.r, 1000 * extract(epoch FROM until - clock_timestamp())) THEN
      held_by := fence.arming_named(a.r);
      v := fence.refusal('ZF005', format('fence of "%s" was not raised: an earlier raise has not ended: %s', a.r, held_by),
                         a.r, NULL, NULL, NULL, NULL, held_by);
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
  END LOOP;

  SELECT f.resource, f.token INTO raise_all.resource, raise_all.recorded
    FROM unnest(p_resources, p_tokens, p_seal_hashes) x(r, token, seal_hash) JOIN fence.resources f ON f.resource = x.r
   WHERE f.token > x.token OR f.token = x.token AND f.seal IS DISTINCT FROM x.seal_hash
   ORDER BY x.r COLLATE "C" LIMIT 1;
  raised := NOT FOUND;
  IF NOT raised THEN
    RETURN;
  END IF;
  FOR a IN SELECT * FROM unnest(p_resources, p_tokens, p_seal_hashes, p_holders) x(r, token, seal_hash, holder) ORDER BY x.r COLLATE "C" LOOP
    SELECT * INTO r FROM fence.raise(a.r, a.token, a.seal_hash, a.holder, p_limit);
    IF NOT r.raised THEN
      RAISE EXCEPTION 'fence of "%" changed while its turn was held', a.r USING ERRCODE = 'internal_error';
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.raise_all(text[], bigint[], bytea[], text[], interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.raise_all(text[], bigint[], bytea[], text[], interval) TO fence_gateway;

-- Phase 2 for several: drains each, in order; see fence.drain. The grace and the limit are those of all together. Where one
-- fence holds another grant, ours is false, and `resource` and `recorded` say which.
CREATE FUNCTION fence.drain_all(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[],
                                p_grace interval DEFAULT '200 ms', p_limit interval DEFAULT '5 s',
                                OUT ours boolean, OUT resource text, OUT recorded bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  begun timestamptz := clock_timestamp();
  allowed interval := 0.8 * nullif(current_setting('statement_timeout')::interval, '0');   -- time to answer, as in fence.drain
  most interval := least(p_limit, allowed);
  spent interval;
  a record;
  d record;
BEGIN
  ours := true;
  FOR a IN SELECT * FROM unnest(p_resources, p_tokens, p_seal_hashes) x(r, token, seal_hash) ORDER BY x.r COLLATE "C" LOOP
    LOOP
      spent := clock_timestamp() - begun;
      BEGIN
        SELECT * INTO d FROM fence.drain(a.r, a.token, a.seal_hash, greatest(p_grace - spent, '0'), greatest(most - spent, '0'));
        EXIT;
      EXCEPTION WHEN deadlock_detected THEN   -- with a stale writer of two of them, who is refused when its short wait is over
        NULL;
      END;
    END LOOP;
    IF NOT d.ours THEN
      ours := false;
      drain_all.resource := a.r;
      drain_all.recorded := d.recorded;
      RETURN;
    END IF;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.drain_all(text[], bigint[], bytea[], interval, interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.drain_all(text[], bigint[], bytea[], interval, interval) TO fence_gateway;

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate schema version 18';
