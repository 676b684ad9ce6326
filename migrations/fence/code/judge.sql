-- The judge of rows: what the trigger functions of a table, which run with the writer's rights, ask the fence.
--
-- These functions run with the rights of fence_owner. Every login may call them, since a writer needs no right in the schema
-- fence. So they take only text and numbers: no relation, and no type whose cast, output or comparison another user has written.
-- They read the grant from the settings themselves. A direct call reveals and locks what a guarded write under the same settings
-- would: it takes the lock of the presented grant, to the end of the caller's transaction, and a refusal shows no seal. But it
-- reveals for any resource whether it is known, and its recorded token; a write reveals that only for the resources that a table
-- needs.
--
-- The functions on a write's path have no SET clause. With one, the check would run under two search_paths in turn, before a
-- statement and after it, and PostgreSQL plans the statements again each time the path changes: 1.2 ms for a row instead of 0.1.
-- So names are qualified.
--
-- fence.judge decides the common case, in which all rows of a statement belong to one resource. fence.judge_rows takes the names
-- of all rows, and raises the refusals.

-- Checks what the transaction presents for one resource. Returns the recorded token. Returns NULL if needed names no resource,
-- or if a logical replication worker presents nothing; then fence.judge_rows decides. Raises the refusal otherwise. This is the
-- hot path, so names are qualified; a SET clause costs time.
CREATE OR REPLACE FUNCTION fence.judge(needed text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  r pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  recorded pg_catalog.int8;
  v fence.verdict;
BEGIN
  IF r OPERATOR(pg_catalog.=) needed AND coalesce(pg_catalog.current_setting('fence.grants', true), '') OPERATOR(pg_catalog.=) '' THEN
    recorded := fence.fast_check(r, pg_catalog.current_setting('fence.token', true));
    IF recorded IS NOT NULL THEN
      RETURN recorded;
    END IF;
  END IF;
  IF fence.resource_fault(needed) IS NOT NULL THEN   -- in the settings NULL means any resource, '*' at the end a prefix
    RETURN NULL;
  END IF;
  v := fence.verify_settings(needed);
  IF v.state IS NULL OR v.state OPERATOR(pg_catalog.=) 'ZF002' AND fence.replicates() THEN
    RETURN v.token;
  END IF;
  RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
END $$;
REVOKE ALL ON FUNCTION fence.judge(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.judge(text) TO PUBLIC;

-- Decides on the resources of a statement's rows, in the order of their names' bytes, and on the tokens that these rows carry in
-- a stamped column; p_tokens is NULL if there is none. p_needed replaces the rows' resources if there is no expression. Returns
-- the first refusal, or a verdict without a state.
CREATE OR REPLACE FUNCTION fence.verdict_of(p_relation text, p_resources text[], p_tokens bigint[], p_needed text) RETURNS fence.verdict
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  e record;
  v fence.verdict;
  judged pg_catalog.bool := false;
  before pg_catalog.text;
  fault pg_catalog.text;
BEGIN
  FOR e IN SELECT coalesce(p_needed, x.r) AS needed, x.t AS token FROM ROWS FROM (pg_catalog.unnest(p_resources), pg_catalog.unnest(p_tokens)) x(r, t)
            ORDER BY coalesce(p_needed, x.r) COLLATE pg_catalog."C" NULLS FIRST LOOP
    IF NOT judged OR before OPERATOR(pg_catalog.<>) e.needed THEN   -- NULL comes first, and is refused
      -- Before the settings are read: there NULL stands for any resource, and '*' at the end for a prefix.
      fault := CASE WHEN e.needed IS NULL THEN 'is NULL'
                    WHEN p_needed IS NULL THEN fence.resource_fault(e.needed) END;
      IF fault IS NOT NULL THEN
        RETURN fence.refusal('ZF004', pg_catalog.format('the resource of a row of %s %s, so no grant covers it', pg_catalog.left(p_relation, 256), fault),
                             NULL, NULL, NULL, pg_catalog.left(e.needed, 512));
      END IF;
      v := fence.verify_settings(e.needed);
      IF v.state IS NOT NULL THEN
        RETURN v;
      END IF;
      judged := true;
      before := e.needed;
    END IF;
    IF p_tokens IS NOT NULL AND (e.token OPERATOR(pg_catalog.=) v.token) IS NOT TRUE THEN
      RETURN fence.refusal('ZF003', pg_catalog.format('a row of %s would carry the token %s, but it is written under %s', pg_catalog.left(p_relation, 256),
                                                      coalesce(e.token::pg_catalog.text, 'NULL'), v.token),
                           e.needed, e.token, v.token, NULL, 'Leave the stamped column to the fence.');
    END IF;
  END LOOP;
  RETURN v;
END $$;
REVOKE ALL ON FUNCTION fence.verdict_of(text, text[], bigint[], text) FROM PUBLIC, fence_writer, fence_gateway;

-- Checks what the transaction presents for the rows of a statement: their old resources, their new resources, and the tokens
-- that they carry. Raises the refusal. p_relation is for people.
CREATE OR REPLACE FUNCTION fence.judge_rows(p_relation text, p_olds text[], p_news text[], p_tokens bigint[], p_needed text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  v fence.verdict := fence.verdict_of(p_relation, p_olds, NULL, p_needed);
  relation pg_catalog.oid;
BEGIN
  IF v.state IS NULL THEN
    v := fence.verdict_of(p_relation, p_news, p_tokens, p_needed);
  END IF;
  IF v.state IS NOT NULL AND NOT (v.state OPERATOR(pg_catalog.=) 'ZF002' AND fence.replicates()) THEN
    relation := fence.protected_named(p_relation);
    PERFORM fence.count_refusal(v, relation);
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = fence.detail_of(v, relation, NULL), HINT = v.hint;
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.judge_rows(text, text[], text[], bigint[], text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.judge_rows(text, text[], text[], bigint[], text) TO PUBLIC;

-- Returns the token to stamp a row with: that of the grant presented for what the row needs, as in fence.verify_settings.
CREATE OR REPLACE FUNCTION fence.judge_stamp(needed text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  v fence.verdict := fence.verify_settings(needed);
BEGIN
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;
REVOKE ALL ON FUNCTION fence.judge_stamp(text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.judge_stamp(text) TO PUBLIC;

-- Reports, after a statement on a table with a resource per row in report mode, the first resource that the presented grants do
-- not cover, or the error of its expression. If no presented grant is current, fence.report has reported that already. It
-- reports only for tables in report mode. A direct caller can count and log for such a table, as it can by writing to it.
CREATE OR REPLACE FUNCTION fence.judge_report(p_relation text, p_operation text, p_number integer, p_resources text[], p_state text, p_fault text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v fence.verdict;
BEGIN
  IF NOT EXISTS (SELECT FROM fence.registry r WHERE r.relation = to_regclass(p_relation) AND r.number = p_number AND r.mode = 'report')
     OR p_operation NOT IN ('INSERT', 'UPDATE', 'DELETE') OR p_state !~ '^[0-9A-Z]{5}$' THEN
    RETURN;
  ELSIF p_state IS NOT NULL THEN
    v := fence.refusal(p_state, 'the resource of a row: ' || left(p_fault, 512), NULL, NULL, NULL);
  ELSIF (fence.try_settings(NULL)).state IS NULL THEN
    BEGIN
      PERFORM set_config('fence.impatient', 'yes', true);
      v := fence.verdict_of(p_relation, p_resources, NULL, NULL);
      RAISE EXCEPTION USING ERRCODE = 'ZF000';
    EXCEPTION
      WHEN SQLSTATE 'ZF000' THEN NULL;
      WHEN OTHERS THEN v := fence.refusal(sqlstate, sqlerrm, NULL, NULL, NULL);
    END;
  END IF;
  IF v.state <> 'ZF005' THEN
    PERFORM fence.log_refusal(p_relation, p_operation, p_number::text, v);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.judge_report(text, text, integer, text[], text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.judge_report(text, text, integer, text[], text, text) TO PUBLIC;
