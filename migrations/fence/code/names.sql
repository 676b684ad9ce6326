-- Names of resources: which ones there can be, how they are escaped, and how they are shown.
--
-- No refusal repeats a seal, even if it was given in place of a resource's name. Names are shown in messages, in DETAIL and so
-- in PostgreSQL's log, and a caller that swaps the arguments of fence.use, or the settings, presents '34.<seal>' as a name. Such
-- a text names no resource. A name in the shape of a seal is shown only if a fence of that name is recorded.

-- A name as it may be shown. 32 hexadecimal digits, alone or after a number and a dot (which may be percent-encoded), count as a
-- seal, unless a resource has this name.
CREATE OR REPLACE FUNCTION fence.shown(p_name text) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  shown text := regexp_replace(p_name COLLATE "C", '^[0-9a-f]{32}$|[0-9]+([.]|%2[Ee])[0-9a-f]{32}', '[seal]', 'g');
BEGIN
  RETURN CASE WHEN shown = p_name OR EXISTS (SELECT FROM fence.resources f WHERE f.resource = p_name) THEN p_name ELSE shown END;
END $$;
REVOKE ALL ON FUNCTION fence.shown(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns why a text can't name a resource, or NULL if it can. A text that reads as a token with its seal names no resource.
-- Rules and words are those of the Go package fence. In encodings other than these, the bytes from 128 to 159 are characters, or
-- parts of them, and chr() may refuse them. Names are qualified, because code that runs under the caller's search_path
-- calls this. PL/pgSQL, because PostgreSQL 15 plans a SQL function that it can't inline on each call.
CREATE OR REPLACE FUNCTION fence.resource_fault(p_resource text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN CASE
    WHEN p_resource IS NULL OR p_resource OPERATOR(pg_catalog.=) '' THEN 'is empty'
    WHEN pg_catalog.octet_length(p_resource) OPERATOR(pg_catalog.>) 512
      THEN pg_catalog.format('is %s bytes long; at most 512 are allowed', pg_catalog.octet_length(p_resource))
    WHEN p_resource COLLATE pg_catalog."C" OPERATOR(pg_catalog.~)
         pg_catalog.concat('[', pg_catalog.chr(1), '-', pg_catalog.chr(31), pg_catalog.chr(127), '-', pg_catalog.chr(
           CASE WHEN pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.~) '^(UTF8|LATIN|ISO)' THEN 159 ELSE 127 END), ']') THEN 'contains a control character'
    WHEN pg_catalog.strpos(p_resource, '*') OPERATOR(pg_catalog.>) 0 THEN 'contains ''*'', which is kept for patterns'
    WHEN p_resource COLLATE pg_catalog."C" OPERATOR(pg_catalog.~) '^[0-9]+[.][0-9a-f]{32}$'
      THEN 'reads as a token with its seal: the resource comes first, then the token'
  END;
END $$;
REVOKE ALL ON FUNCTION fence.resource_fault(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.resource_fault(text) TO PUBLIC;

-- Decodes percent-encoding; NULL if it is malformed or not UTF-8. It is part of the check, so its cost does not grow with the
-- number of escapes, and it has no SET clause. In Latin-1 each byte is a character, and JSON reads '\u00c3' as the character of
-- the byte c3. No literal holds a backslash, which standard_conforming_strings could change.
CREATE OR REPLACE FUNCTION fence.unescape(p_escaped text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  slash CONSTANT pg_catalog.text := pg_catalog.chr(92);
  bytes pg_catalog.text;   -- a character for each byte
BEGIN
  IF pg_catalog.octet_length(p_escaped) OPERATOR(pg_catalog.>) 1536 THEN   -- a name has at most 512 bytes
    RETURN NULL;
  ELSIF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
    RETURN fence.unescape_otherwise(p_escaped);
  END IF;
  bytes := pg_catalog.convert_from(pg_catalog.convert_to(p_escaped, 'UTF8'), 'LATIN1');
  bytes := pg_catalog.concat('"', pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(bytes, slash, pg_catalog.concat(slash, slash)),
             '"', pg_catalog.concat(slash, '"')), '%', pg_catalog.concat(slash, 'u00')), '"')::pg_catalog.json OPERATOR(pg_catalog.#>>) '{}'::pg_catalog.text[];
  RETURN pg_catalog.convert_from(pg_catalog.convert_to(bytes, 'LATIN1'), 'UTF8');
EXCEPTION   -- JSON refuses: no two digits after '%', the byte 0, and control characters, which no name has
  WHEN invalid_text_representation OR untranslatable_character OR character_not_in_repertoire THEN
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.unescape(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.unescape(text) TO PUBLIC;

-- The same in a database of another encoding, which may lack a character that a name holds.
CREATE OR REPLACE FUNCTION fence.unescape_otherwise(p_escaped text) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  bytes bytea := '';
  part text;
  first boolean := true;
BEGIN
  FOREACH part IN ARRAY string_to_array(p_escaped, '%') LOOP
    IF first THEN
      bytes := convert_to(part, 'UTF8');
    ELSIF part ~ '^[0-9A-Fa-f]{2}' THEN
      bytes := bytes || decode(left(part, 2), 'hex') || convert_to(substr(part, 3), 'UTF8');
    ELSE
      RETURN NULL;
    END IF;
    first := false;
  END LOOP;
  RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.unescape_otherwise(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.unescape_otherwise(text) TO PUBLIC;

-- A refusal, with names as they may be shown. Tokens in DETAIL are text: they may exceed what a double holds exactly.
CREATE OR REPLACE FUNCTION fence.refusal(p_state text, p_message text, p_resource text, p_presented bigint, p_recorded bigint,
                              p_needed text DEFAULT NULL, p_advice text DEFAULT NULL, p_held_by text DEFAULT NULL)
RETURNS fence.verdict LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ROW(NULL, p_state, p_message,
    json_strip_nulls(json_build_object('resource', fence.shown(p_resource), 'presented', p_presented::text, 'recorded', p_recorded::text,
                                       'needed', fence.shown(p_needed), 'held_by', p_held_by))::text,
    concat_ws(' ', CASE p_state
      WHEN 'ZF001' THEN 'A newer holder has taken over. Stop; acquire the resource again and start from what it wrote.'
      WHEN 'ZF002' THEN concat('Acquire a lease and present its grant: SELECT fence.use(resource, token) first in the transaction; or for a whole ',
        'connection -c fence.resource=NAME -c fence.token=TOKEN in its options (libpq, psycopg, JDBC), RuntimeParams (pgx) or server_settings (asyncpg). ',
        'See docs/frameworks.md.')
      WHEN 'ZF003' THEN 'Present the token and seal exactly as they were issued, or acquire the resource again.'
      WHEN 'ZF004' THEN 'Acquire the resource that the write needs.'
      WHEN 'ZF005' THEN 'End the transactions that still hold the resource, then acquire again.'
    END, p_advice))::fence.verdict
$$;
REVOKE ALL ON FUNCTION fence.refusal(text, text, text, bigint, bigint, text, text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- The refusal of a grant that has ended. `ended` distinguishes it from a grant that a newer one has superseded.
CREATE OR REPLACE FUNCTION fence.refusal_of_ended(p_resource text, p_token bigint) RETURNS fence.verdict LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT ROW(NULL, 'ZF001', format('the lease of token %s for "%s" has ended', p_token, p_resource),
    json_build_object('resource', fence.shown(p_resource), 'presented', p_token::text, 'recorded', p_token::text, 'ended', true)::text,
    'Acquire the resource again and start from what is there then.')::fence.verdict
$$;
REVOKE ALL ON FUNCTION fence.refusal_of_ended(text, bigint) FROM PUBLIC, fence_writer, fence_gateway;

-- The same for a token that is not above the floor of a retired fence; see retire.sql.
CREATE OR REPLACE FUNCTION fence.refusal_of_retired(p_resource text, p_token bigint, p_floor bigint) RETURNS fence.verdict LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT fence.refusal('ZF001', format('stale fencing token %s for "%s": the fence was not used for long, and tokens up to %s are refused',
                                       p_token, fence.shown(p_resource), p_floor), p_resource, p_token, p_floor)
$$;
REVOKE ALL ON FUNCTION fence.refusal_of_retired(text, bigint, bigint) FROM PUBLIC, fence_writer, fence_gateway;

-- A refusal's DETAIL, with the table and the operation: no value, and no seal.
CREATE OR REPLACE FUNCTION fence.detail_of(v fence.verdict, p_relation oid, p_operation text) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE '{}' WHEN more THEN v.detail WHEN v.detail THEN more ELSE concat(left(v.detail, -1), ',', substr(more, 2)) END
    FROM (SELECT json_strip_nulls(json_build_object('relation', p_relation::regclass::text, 'operation', p_operation))::text) m(more)
$$;
REVOKE ALL ON FUNCTION fence.detail_of(fence.verdict, oid, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Counts a refusal of the fence for a table, see fence.protected. A sequence keeps the counts of rolled back transactions, and
-- no session waits for one. Only a refused write calls this.
CREATE OR REPLACE FUNCTION fence.count_refusal(v fence.verdict, p_relation oid) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  counter regclass := (SELECT to_regclass('fence.refused_' || r.number) FROM fence.registry r WHERE r.relation = p_relation AND r.mode = 'enforce');
BEGIN
  IF counter IS NOT NULL AND starts_with(v.state, 'ZF0') THEN
    PERFORM nextval(counter);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.count_refusal(fence.verdict, oid) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the protected table of this name, as format('%I.%I') writes it. to_regclass would need rights in its schema.
CREATE OR REPLACE FUNCTION fence.protected_named(p_relation text) RETURNS oid LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.relation FROM fence.registry r WHERE r.relation::text = p_relation
$$;
REVOKE ALL ON FUNCTION fence.protected_named(text) FROM PUBLIC, fence_writer, fence_gateway;
