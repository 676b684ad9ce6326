-- Judging without refusing: mode => 'report' writes to PostgreSQL's log what the guards would refuse, and counts it, so that an
-- operator can observe a running system before its guards enforce.
--
-- It must change nothing. So a subtransaction rolls back at once what a check locks or raises: otherwise arming would wait for,
-- and in the end terminate, a stale writer that the guards do not refuse yet. It waits for no session, and no error of its own
-- ends the statement. The counter is a sequence, which no transaction waits for, and which keeps the counts of rolled back ones.

-- Splits a trigger's arguments, which pg_trigger keeps as bytes, each ended by a zero byte.
CREATE OR REPLACE FUNCTION fence.arguments(p_bytes bytea) RETURNS text[] LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  list text[] := '{}';
  zero int := position(decode('00', 'hex') IN p_bytes);
BEGIN
  WHILE zero > 0 LOOP
    list := list || convert_from(substring(p_bytes FROM 1 FOR zero - 1), getdatabaseencoding());
    p_bytes := substring(p_bytes FROM zero + 1);
    zero := position(decode('00', 'hex') IN p_bytes);
  END LOOP;
  RETURN list;
END $$;
REVOKE ALL ON FUNCTION fence.arguments(bytea) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.arguments(bytea) TO PUBLIC;

-- Reports a refusal: a log line with SQLSTATE ZF001 to ZF005, whose DETAIL is JSON; and increments refused_N.
CREATE OR REPLACE FUNCTION fence.log_refusal(p_relation text, p_operation text, p_number text, v fence.verdict) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM nextval(format('fence.refused_%s', p_number)::regclass);
  RAISE LOG USING ERRCODE = v.state, MESSAGE = format('fence would refuse %s of %s: %s', p_operation, p_relation, v.message),
    DETAIL = (v.detail::jsonb || jsonb_build_object('relation', p_relation, 'operation', p_operation, 'login', session_user))::text, HINT = v.hint;
END $$;
REVOKE ALL ON FUNCTION fence.log_refusal(text, text, text, fence.verdict) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the verdict of fence.verify_settings, without its effects. It raises only errors that end a statement from outside.
-- ZF005 is no refusal here: only waiting could decide it.
CREATE OR REPLACE FUNCTION fence.try_settings(p_needed text) RETURNS fence.verdict LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v fence.verdict;
BEGIN
  PERFORM set_config('fence.impatient', 'yes', true);
  v := fence.verify_settings(p_needed);
  RAISE EXCEPTION USING ERRCODE = 'ZF000';
EXCEPTION
  WHEN SQLSTATE 'ZF000' THEN
    IF v.state = 'ZF005' THEN
      v := NULL;
    END IF;
    RETURN v;
  WHEN OTHERS THEN RETURN fence.refusal(sqlstate, sqlerrm, NULL, NULL, NULL, p_needed);
END $$;
REVOKE ALL ON FUNCTION fence.try_settings(text) FROM PUBLIC, fence_writer, fence_gateway;

-- The guard of a table in report mode, before each statement. Its arguments: the resource, the prefix, the expression per row
-- ('' if not given), the number, and the column to stamp once it enforces.
CREATE OR REPLACE FUNCTION fence.report() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v fence.verdict := CASE
    WHEN tg_op = 'TRUNCATE' AND tg_argv[2] <> '' THEN
      fence.refusal('ZF004', format('TRUNCATE of %s, whose rows belong to a resource each', tg_relid::regclass), NULL, NULL, NULL)
    ELSE fence.try_settings(coalesce(nullif(tg_argv[0], ''), nullif(tg_argv[1], '') || '*')) END;
BEGIN
  IF v.state IS NOT NULL AND NOT fence.replicates(tg_relid, tg_op) THEN
    PERFORM fence.log_refusal(tg_relid::regclass::text, tg_op, tg_argv[3], v);
  END IF;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.report() FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.report() TO fence_protector;

-- Creates the counter for this number of a protection, or for a new one, if it is missing. Returns the number.
CREATE OR REPLACE FUNCTION fence.make_counter(p_number integer) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  number integer := coalesce(p_number, nextval('fence.protections'));
BEGIN
  IF to_regclass('fence.refused_' || number) IS NULL THEN
    PERFORM fence.tidy(number);
    EXECUTE format('CREATE SEQUENCE fence.refused_%s', number);
    EXECUTE format('GRANT SELECT ON fence.refused_%s TO PUBLIC', number);
  END IF;
  RETURN number;
END $$;
REVOKE ALL ON FUNCTION fence.make_counter(integer) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.make_counter(integer) TO fence_protector;
