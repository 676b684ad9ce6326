-- One grant in a transaction again. What fence.use put into a running transaction's fence.grants is no longer seen.
SET ROLE fence_owner;
DROP FUNCTION fence.use(text[], text[]);
DROP FUNCTION fence.raise_all(text[], bigint[], bytea[], text[], interval);
DROP FUNCTION fence.drain_all(text[], bigint[], bytea[], interval, interval);

CREATE OR REPLACE FUNCTION fence.verify_settings(p_needed text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  setting text := current_setting('fence.resource', true);
  presented text := current_setting('fence.token', true);
  resource text := setting;
  fault text;
  number text := split_part(presented, '.', 1);
  seal text := CASE WHEN strpos(presented, '.') > 0 THEN substr(presented, strpos(presented, '.') + 1) END;
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN fence.refusal('55000', 'a standby may be behind the fence, so a grant can''t be checked here', NULL, NULL, NULL, NULL,
                         'Present the grant to the primary.');
  END IF;
  IF coalesce(setting, '') = '' OR coalesce(presented, '') = '' THEN
    RETURN fence.refusal('ZF002', concat('write without a fencing token', ': it needs a grant of "' || p_needed || '"'),
                         NULL, NULL, NULL, p_needed);
  END IF;
  IF strpos(setting, '%') > 0 THEN
    resource := fence.unescape(setting);
    IF resource IS NULL THEN
      RETURN fence.refusal('ZF003', 'the setting fence.resource is not a percent-encoded name of at most 512 bytes', left(setting, 512), NULL, NULL);
    END IF;
  END IF;
  fault := fence.resource_fault(resource);
  IF fault IS NOT NULL THEN
    RETURN fence.refusal('ZF003', 'resource ' || fault, left(setting, 512), NULL, NULL);
  ELSIF resource <> p_needed AND NOT (right(p_needed, 1) = '*' AND starts_with(resource, left(p_needed, -1))) THEN
    RETURN fence.refusal('ZF004', format('grant is for "%s", but the write needs "%s"', resource, p_needed),
                         resource, NULL, NULL, p_needed);
  END IF;

  fault := CASE
    WHEN number = '' THEN 'is empty'
    WHEN number !~ '^[0-9]+$' THEN 'is not a decimal number'
    WHEN number = '0' AND seal IS NULL THEN 'is 0; tokens start at 1'
    WHEN number ~ '^0.' THEN 'has a leading zero'
    WHEN length(number) > 19 OR number::numeric > 9223372036854775807 THEN 'is over the int64 range'
  END;
  IF fault IS NOT NULL THEN
    RETURN fence.refusal('ZF003', 'token ' || fault, resource, NULL, NULL);
  ELSIF seal !~ '^[0-9a-f]{32}$' THEN
    RETURN fence.refusal('ZF003', 'seal is not 32 lower-case hexadecimal digits', resource, number::bigint, NULL);
  END IF;
  RETURN fence.verify(resource, number::bigint, sha256(convert_to(seal, 'UTF8')),
                      CASE WHEN seal IS NULL THEN 'unsealed' ELSE 'sealed' END);
END $$;
DROP FUNCTION fence.verify_presented(text, text, text);

CREATE OR REPLACE FUNCTION fence.use(resource text, token text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  setting pg_catalog.text := pg_catalog.set_config('fence.resource', pg_catalog.replace(resource, '%', '%25'), true);
  presented pg_catalog.text := pg_catalog.set_config('fence.token', token, true);
  recorded pg_catalog.int8 := CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN fence.fast_check(setting, presented) END;
  v fence.verdict;
BEGIN
  IF recorded IS NULL THEN
    v := fence.verify_settings(NULL);
    IF v.state IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
    recorded := v.token;
  END IF;
  RETURN recorded;
END $$;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 17';
