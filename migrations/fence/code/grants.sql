-- The grants that a transaction presents, and the check of a write against them.
--
--   SELECT fence.use(ARRAY['orders/1001', 'users/7'], ARRAY['34.<seal>', '2.<seal>']);
--
-- The list travels in a setting of its own, fence.grants: 'orders/1001=34.<seal>,users/7=2.<seal>', each resource
-- percent-encoded so that it holds no '%', '=' or ','. It may come with the connection, as fence.resource and fence.token may.
-- If all three are set, the transaction presents all grants in them. fence.use replaces all presented grants.
--
-- Every guard checks a write by fence.verify_settings(needed). `needed` is the resource that the write needs; 'orders/*' means
-- any resource below 'orders/'; NULL means all presented grants. The function finds the grant among those presented, checks it,
-- and keeps its lock to the end of the transaction. The verdict has state NULL, or the refusal to raise. A guard with a resource
-- per row calls it once for each resource that the statement touched. A guard may try fence.fast_check first, but only if
-- fence.resource is exactly the resource that is needed.
--
-- A session that locks several resources locks them in the order of the names' bytes, so that two sessions can't deadlock.

-- Decides on one presented grant, for a name that is decoded and well-formed.
CREATE OR REPLACE FUNCTION fence.verify_presented(p_resource text, p_presented text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE
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
BEGIN
  IF fault IS NOT NULL THEN
    RETURN fence.refusal('ZF003', 'token ' || fault, p_resource, NULL, NULL);
  ELSIF seal !~ '^[0-9a-f]{32}$' THEN
    RETURN fence.refusal('ZF003', 'seal is not 32 lower-case hexadecimal digits', p_resource, number::bigint, NULL);
  END IF;
  RETURN fence.verify(p_resource, number::bigint, sha256(convert_to(seal, 'UTF8')), CASE WHEN seal IS NULL THEN 'unsealed' ELSE 'sealed' END);
END $$;
REVOKE ALL ON FUNCTION fence.verify_presented(text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Decides on the settings if fast_settings does not, and names the reason of a refusal.
CREATE OR REPLACE FUNCTION fence.verify_slowly(p_needed text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE
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
    RETURN fence.refusal('ZF002', concat('write without a fencing token', ': it needs a grant of "' || fence.shown(p_needed) || '"'),
                         NULL, NULL, NULL, p_needed, CASE
                           WHEN coalesce(current_setting('fence.resource', true), '') <> '' THEN 'fence.resource arrived here, and no fence.token.'
                           WHEN coalesce(current_setting('fence.token', true), '') <> '' THEN 'fence.token arrived here, and no fence.resource.'
                           ELSE 'No fence.* option arrived here: the driver, or a pooler in between, may have dropped it.' END);
  END IF;

  FOR i IN 1 .. cardinality(settings) LOOP
    name := CASE WHEN strpos(settings[i], '%') > 0 THEN fence.unescape(settings[i]) ELSE settings[i] END;
    IF name IS NULL THEN
      RETURN fence.refusal('ZF003', 'the setting fence.resource is not a percent-encoded name of at most 512 bytes', left(fence.shown(settings[i]), 512), NULL, NULL);
    END IF;
    fault := fence.resource_fault(name);
    IF fault IS NOT NULL THEN
      RETURN fence.refusal('ZF003', 'resource ' || fault, left(fence.shown(settings[i]), 512), NULL, NULL);
    END IF;
    names := names || name;
  END LOOP;

  FOR i IN SELECT n FROM unnest(names) WITH ORDINALITY x(r, n)
            WHERE p_needed IS NULL OR r = p_needed OR starts_with(r, below) ORDER BY r COLLATE "C", n LOOP
    v := fence.verify_presented(names[i], tokens[i]);
    IF v.state IS NOT NULL THEN
      RETURN v;
    END IF;
    IF first IS NULL THEN
      first := v;
    END IF;
  END LOOP;
  IF v IS NULL THEN
    SELECT array_agg(fence.shown(r) ORDER BY n) INTO names FROM unnest(names) WITH ORDINALITY x(r, n);
    RETURN fence.refusal('ZF004', format('%s for "%s", but the write needs "%s"', CASE WHEN cardinality(names) = 1 THEN 'grant is' ELSE 'grants are' END,
                                         left(array_to_string(names, '", "'), 512), fence.shown(p_needed)),
                         left(array_to_string(names, ', '), 512), NULL, NULL, p_needed);
  END IF;
  RETURN first;
END $$;
REVOKE ALL ON FUNCTION fence.verify_slowly(text) FROM PUBLIC, fence_writer, fence_gateway;

-- The common cases of fence.grants: checks every grant in it that fits by the fast path. Returns the recorded token of the first
-- one in the order of the names' bytes, or NULL: then verify_slowly decides. Locks are only tried, so their order does not
-- matter.
CREATE OR REPLACE FUNCTION fence.fast_list(p_listed text, p_needed text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  below pg_catalog.text := CASE WHEN pg_catalog.right(p_needed, 1) OPERATOR(pg_catalog.=) '*' THEN pg_catalog.left(p_needed, -1) END;
  plain pg_catalog.bool := pg_catalog.strpos(p_listed, '%') OPERATOR(pg_catalog.=) 0;
  sought pg_catalog.text := ',';   -- what precedes a grant that may fit
  rest pg_catalog.text := p_listed;
  n pg_catalog.int4 := 1;
  name pg_catalog.text;
  first pg_catalog.text;
  recorded pg_catalog.int8;
  result pg_catalog.int8;
BEGIN
  IF NOT plain AND p_listed OPERATOR(pg_catalog.~) '^([^=,%]|%[^23]|%2[^Cc]|%3[^Dd])+=[^=,%]+(,([^=,%]|%[^23]|%2[^Cc]|%3[^Dd])+=[^=,%]+)*$' THEN
    rest := coalesce(fence.unescape(p_listed), p_listed);   -- no name has ',' or '=', so one call decodes the whole list
    plain := rest OPERATOR(pg_catalog.<>) p_listed;
  ELSIF p_listed OPERATOR(pg_catalog.!~) '^[^=,]+=[^=,%]+(,[^=,]+=[^=,%]+)*$' THEN
    RETURN NULL;
  END IF;
  IF plain AND p_needed IS NOT NULL THEN
    sought := pg_catalog.concat(',', coalesce(below, pg_catalog.concat(p_needed, '=')));
  END IF;
  rest := pg_catalog.concat(',', rest);
  LOOP
    n := pg_catalog.strpos(rest, sought);
    EXIT WHEN n OPERATOR(pg_catalog.=) 0;
    rest := pg_catalog.substr(rest, n OPERATOR(pg_catalog.+) 1);
    name := pg_catalog.split_part(rest, '=', 1);
    IF NOT plain THEN
      name := fence.unescape(name);
      IF name IS NULL THEN
        RETURN NULL;
      END IF;
    END IF;
    IF p_needed IS NULL OR name OPERATOR(pg_catalog.=) p_needed OR pg_catalog.starts_with(name, below) THEN
      recorded := fence.fast_check(name, pg_catalog.split_part(pg_catalog.split_part(rest, ',', 1), '=', 2), true);
      IF recorded IS NULL THEN
        RETURN NULL;
      ELSIF first IS NULL OR name COLLATE pg_catalog."C" OPERATOR(pg_catalog.<) first THEN
        first := name;
        result := recorded;
      END IF;
    END IF;
  END LOOP;
  RETURN result;
END $$;
REVOKE ALL ON FUNCTION fence.fast_list(text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- The common cases of the settings, for a write that needs p_needed (see verify_settings): sealed grants, either one, whose name
-- may be percent-encoded, or a list. Returns the recorded token, or NULL: then verify_slowly decides.
CREATE OR REPLACE FUNCTION fence.fast_settings(p_needed text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  name pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  token pg_catalog.text := pg_catalog.current_setting('fence.token', true);
  listed pg_catalog.text := pg_catalog.current_setting('fence.grants', true);
BEGIN
  IF pg_catalog.pg_is_in_recovery() THEN
    RETURN NULL;
  ELSIF coalesce(listed, '') OPERATOR(pg_catalog.=) '' THEN
    IF pg_catalog.strpos(name, '%') OPERATOR(pg_catalog.>) 0 THEN
      name := fence.unescape(name);
    END IF;
    IF p_needed IS NULL OR name OPERATOR(pg_catalog.=) p_needed
       OR pg_catalog.right(p_needed, 1) OPERATOR(pg_catalog.=) '*' AND pg_catalog.starts_with(name, pg_catalog.left(p_needed, -1)) THEN
      RETURN fence.fast_check(name, token, true);
    END IF;
  ELSIF coalesce(name, '') OPERATOR(pg_catalog.=) '' OR coalesce(token, '') OPERATOR(pg_catalog.=) '' THEN
    RETURN fence.fast_list(listed, p_needed);
  END IF;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.fast_settings(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Decides on the settings, for a write that needs p_needed: a resource; 'orders/*' for any resource below 'orders/'; NULL for
-- all presented grants. If several grants fit, each must be current. The verdict is the recorded token (of the first one), or
-- ZF001 to ZF005.
CREATE OR REPLACE FUNCTION fence.verify_settings(p_needed text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  recorded pg_catalog.int8 := fence.fast_settings(p_needed);
BEGIN
  IF recorded IS NULL THEN
    RETURN fence.verify_slowly(p_needed);
  END IF;
  RETURN ROW(recorded, NULL, NULL, NULL, NULL)::fence.verdict;
END $$;
REVOKE ALL ON FUNCTION fence.verify_settings(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Checks the settings now, instead of at the next guarded write; see verify_settings for `needed`. Returns the recorded token.
CREATE OR REPLACE FUNCTION fence.check(needed text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  v fence.verdict := fence.verify_settings(needed);
BEGIN
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;
REVOKE ALL ON FUNCTION fence.check(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.check(text) TO fence_writer;

-- Presents a grant for the rest of this transaction, in place of all others, and checks it now. The resource is the plain name.
-- Returns the recorded token.
CREATE OR REPLACE FUNCTION fence.use(resource text, token text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  setting pg_catalog.text := pg_catalog.set_config('fence.resource', pg_catalog.replace(resource, '%', '%25'), true);
  presented pg_catalog.text := pg_catalog.set_config('fence.token', token, true);
  recorded pg_catalog.int8 := CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN fence.fast_check(resource, presented, true) END;
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
REVOKE ALL ON FUNCTION fence.use(text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.use(text, text) TO fence_writer;

-- Presents several grants for the rest of this transaction, in place of all others, and checks each now. Resources are plain
-- names, each once; tokens are in the same order. Returns the number of grants.
CREATE OR REPLACE FUNCTION fence.use(resources text[], tokens text[]) RETURNS int LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  fault pg_catalog.text := CASE
    WHEN coalesce(pg_catalog.cardinality(resources), 0) OPERATOR(pg_catalog.=) 0 THEN 'resources are missing'
    WHEN (pg_catalog.cardinality(tokens) OPERATOR(pg_catalog.=) pg_catalog.cardinality(resources)) IS NOT TRUE THEN 'tokens are not as many as resources'
    WHEN pg_catalog.array_position(resources, NULL) OPERATOR(pg_catalog.>) 0 OR pg_catalog.array_position(tokens, NULL) OPERATOR(pg_catalog.>) 0
      THEN 'a resource or a token is NULL'
    WHEN (SELECT pg_catalog.count(DISTINCT r) OPERATOR(pg_catalog.<) pg_catalog.count(*) FROM pg_catalog.unnest(resources) r) THEN 'resources name one resource twice'
    WHEN '' OPERATOR(pg_catalog.=) ANY (resources) THEN 'resource is empty'
    WHEN EXISTS (SELECT FROM pg_catalog.unnest(tokens) x WHERE x OPERATOR(pg_catalog.!~) '^[^=,]+$') THEN 'a token is malformed'
  END;
  v fence.verdict;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM pg_catalog.set_config('fence.resource', '', true), pg_catalog.set_config('fence.token', '', true), pg_catalog.set_config('fence.grants',
    (SELECT pg_catalog.string_agg(pg_catalog.concat(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(x.r, '%', '%25'), ',', '%2C'), '=', '%3D'), '=', x.k), ',')
       FROM ROWS FROM (pg_catalog.unnest(resources), pg_catalog.unnest(tokens)) x(r, k)), true);
  v := fence.verify_settings(NULL);
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN pg_catalog.cardinality(resources);
END $$;
REVOKE ALL ON FUNCTION fence.use(text[], text[]) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.use(text[], text[]) TO fence_writer;

-- The same check under the recorded grant's key, without a seal. Returns the recorded token, which then equals the presented
-- one. For a gateway that authenticated (resource, token) by its own MAC. Raises ZF001 or ZF003.
CREATE OR REPLACE FUNCTION fence.check_issued(resource text, token bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := coalesce('resource ' || fence.resource_fault(resource),
                         CASE WHEN coalesce(token, 0) <= 0 THEN 'token is not a positive number' END);
  v fence.verdict := CASE WHEN fault IS NULL THEN fence.verify(resource, token, NULL, 'issued')
                          ELSE fence.refusal('ZF003', fault, left(resource, 512), token, NULL) END;
BEGIN
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;
REVOKE ALL ON FUNCTION fence.check_issued(text, bigint) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.check_issued(text, bigint) TO fence_gateway;
