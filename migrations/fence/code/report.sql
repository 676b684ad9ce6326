-- Judging without refusing: mode => 'report' says in PostgreSQL's log what the guards would refuse, and counts it, so that a
-- system at work can be looked at before its guards are made to enforce.
--
-- It must change nothing. So what a check locks or raises is rolled back with its subtransaction at once: otherwise arming would
-- wait for, and in the end terminate, a stale writer whom nobody refuses yet. It waits for nobody, and no error of its own ends the
-- statement. And the counter is a sequence, which no transaction
-- waits for, and which keeps what a rolled back one counted.

-- A trigger's arguments, which pg_trigger keeps as bytes, each ended by a zero byte.
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

-- Judges the resources that a statement's rows belong to, in the order of their names' bytes, and the tokens that these rows
-- carry in a stamped column; p_tokens is NULL where none is. p_needed: instead of the rows' resources, where there is no
-- expression. Returns the first refusal, or a verdict without a state.
CREATE OR REPLACE FUNCTION fence.judge_rows(p_relation regclass, p_resources text[], p_tokens bigint[], p_needed text) RETURNS fence.verdict
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  e record;
  v fence.verdict;
  before text;
  fault text;
BEGIN
  FOR e IN SELECT coalesce(p_needed, x.r) AS needed, x.t AS token, n FROM unnest(p_resources, p_tokens) WITH ORDINALITY x(r, t, n)
            ORDER BY coalesce(p_needed, x.r) COLLATE "C" NULLS FIRST LOOP
    IF before IS DISTINCT FROM e.needed OR v IS NULL THEN
      -- Before the settings are asked: there NULL stands for any resource, and '*' at the end for a prefix.
      fault := CASE WHEN e.needed IS NULL THEN 'is NULL'
                    WHEN p_needed IS NULL THEN fence.resource_fault(e.needed) END;
      IF fault IS NOT NULL THEN
        RETURN fence.refusal('ZF004', format('the resource of a row of %s %s, so no grant covers it', p_relation, fault),
                             NULL, NULL, NULL, left(e.needed, 512));
      END IF;
      v := fence.verify_settings(e.needed);
      IF v.state IS NOT NULL THEN
        RETURN v;
      END IF;
      before := e.needed;
    END IF;
    IF p_tokens IS NOT NULL AND e.token IS DISTINCT FROM v.token THEN
      RETURN fence.refusal('ZF003', format('a row of %s would carry the token %s, but it is written under %s', p_relation, coalesce(e.token::text, 'NULL'), v.token),
                           e.needed, e.token, v.token, NULL, 'Leave the stamped column to the fence.');
    END IF;
  END LOOP;
  RETURN v;
END $$;
REVOKE ALL ON FUNCTION fence.judge_rows(regclass, text[], bigint[], text) FROM PUBLIC, fence_writer, fence_gateway;

-- Says what would be refused: a line in the log, of SQLSTATE ZF001 to ZF005, whose DETAIL is JSON; and one more in refused_N.
CREATE OR REPLACE FUNCTION fence.log_refusal(p_relation regclass, p_operation text, p_number text, v fence.verdict) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM nextval(format('fence.refused_%s', p_number)::regclass);
  RAISE LOG USING ERRCODE = v.state, MESSAGE = format('fence would refuse %s of %s: %s', p_operation, p_relation, v.message),
    DETAIL = (v.detail::jsonb || jsonb_build_object('relation', p_relation::text, 'operation', p_operation, 'login', session_user))::text, HINT = v.hint;
END $$;
REVOKE ALL ON FUNCTION fence.log_refusal(regclass, text, text, fence.verdict) FROM PUBLIC, fence_writer, fence_gateway;

-- What fence.verify_settings comes to, without its effects. It raises nothing but what ends a statement from outside. What only
-- waiting could tell (ZF005) is no refusal.
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
-- ('' where not given), the number, and the column to stamp once it enforces.
CREATE OR REPLACE FUNCTION fence.report() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v fence.verdict := CASE
    WHEN tg_op = 'TRUNCATE' AND tg_argv[2] <> '' THEN
      fence.refusal('ZF004', format('TRUNCATE of %s, whose rows belong to a resource each', tg_relid::regclass), NULL, NULL, NULL)
    ELSE fence.try_settings(coalesce(nullif(tg_argv[0], ''), nullif(tg_argv[1], '') || '*')) END;
BEGIN
  IF v.state IS NOT NULL AND NOT fence.replicates() THEN
    PERFORM fence.log_refusal(tg_relid, tg_op, tg_argv[3], v);
  END IF;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.report() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.report() TO fence_writer;

-- After a statement on a table with a resource per row: reports the first resource that what is presented does not cover.
-- Where that is not current at all, fence.report has said so.
CREATE OR REPLACE FUNCTION fence.report_rows(p_relation regclass, p_operation text, p_resources text[], p_number text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v fence.verdict;
BEGIN
  IF (fence.try_settings(NULL)).state IS NULL THEN
    BEGIN
      PERFORM set_config('fence.impatient', 'yes', true);
      v := fence.judge_rows(p_relation, p_resources, NULL, NULL);
      RAISE EXCEPTION USING ERRCODE = 'ZF000';
    EXCEPTION
      WHEN SQLSTATE 'ZF000' THEN NULL;
      WHEN OTHERS THEN v := fence.refusal(sqlstate, sqlerrm, NULL, NULL, NULL);
    END;
    IF v.state <> 'ZF005' THEN
      PERFORM fence.log_refusal(p_relation, p_operation, p_number, v);
    END IF;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.report_rows(regclass, text, text[], text) FROM PUBLIC, fence_writer, fence_gateway;

-- Makes the counter for the protection of this number, or of a new one, and returns the number.
CREATE OR REPLACE FUNCTION fence.make_counter(p_number integer) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  number integer := coalesce(p_number, nextval('fence.protections'));
BEGIN
  EXECUTE format('CREATE SEQUENCE fence.refused_%s', number);
  EXECUTE format('GRANT SELECT ON fence.refused_%s TO PUBLIC', number);
  RETURN number;
END $$;
REVOKE ALL ON FUNCTION fence.make_counter(integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.make_counter(integer) TO fence_writer;
