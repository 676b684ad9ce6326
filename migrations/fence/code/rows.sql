-- A resource for each row, and the column that stores the token which wrote a row.
--
--   SELECT fence.protect('orders', per_row => $$'orders/' || id$$);             -- see protect.sql
--   SELECT fence.protect('orders', under => 'orders/', stamp => 'token');
--
-- Mechanism. Beside the guard before each statement, triggers fire AFTER the statement. They see every row that it wrote, as
-- stored, in transition tables, compute the rows' names, and pass these to the judge (judge.sql), which reads the settings once
-- and checks that grant. So neither a later BEFORE trigger, nor a setting that the statement itself changes (INSERT ... SELECT
-- set_config(...)), bypasses it. A comparison row by row, in a WHEN clause, would let the latter through. It costs one check per
-- statement and one scan.
--
-- Facts behind it, each tested: the transition tables of the table that the statement names have all rows that UPDATE moves
-- between partitions, or that MERGE, COPY, ON CONFLICT or a foreign key's cascade writes. Exceptions are in moves.sql: rows that
-- MERGE moves between partitions, and those of a statement that another language stops. A logical replication apply worker fires
-- no statement trigger, and presents no grant to those for each row, so it passes.
--
-- Rights. rows_N and stamp_N run with the writer's rights, and so does all code of a row's type, its casts or a view called
-- new_rows. Only text and numbers reach functions with the rights of fence_owner. The writer can't forge them: resource_of_N is
-- a tree that was parsed when the table was protected; the names in rows_N are qualified, except the transition tables, which
-- PostgreSQL finds before relations; and no setting of the session changes their results. Therefore an expression may use only
-- what comes with PostgreSQL. For anything else, the table's owner makes a generated column, and names that.

-- The generation of what fence.make_rows creates. Raise it with each change of the functions that it writes. Existing ones stay
-- as they are, and work, until fence.refresh recreates them; fence.outdated lists them.
CREATE OR REPLACE FUNCTION fence.generation() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 2 $$;
REVOKE ALL ON FUNCTION fence.generation() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.generation() TO PUBLIC;

-- The guard before each statement on a table with a resource per row, see fence.protect: a write of no rows needs a current
-- grant, too. Its arguments are for people: the expression and the number.
CREATE OR REPLACE FUNCTION fence.guard_rows() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  r pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  v fence.verdict;
BEGIN
  IF tg_op OPERATOR(pg_catalog.<>) 'TRUNCATE' THEN
    IF coalesce(pg_catalog.current_setting('fence.grants', true), '') OPERATOR(pg_catalog.=) ''
       AND fence.fast_check(r, pg_catalog.current_setting('fence.token', true)) IS NOT NULL THEN
      RETURN NULL;
    END IF;
    v := fence.verify_settings(NULL);
  ELSE
    v := fence.refusal('ZF004', pg_catalog.format('TRUNCATE of %s, whose rows belong to a resource each', tg_relid::pg_catalog.regclass),
                       NULL, NULL, NULL, NULL, 'DELETE the rows of your resource.');
  END IF;
  IF v.state IS NULL OR (v.state OPERATOR(pg_catalog.=) 'ZF002' OR tg_op OPERATOR(pg_catalog.=) 'TRUNCATE') AND fence.replicates(tg_relid, tg_op) THEN
    RETURN NULL;
  END IF;
  PERFORM fence.count_refusal(v, tg_relid);
  RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = fence.told_of(v, tg_relid), DETAIL = fence.detail_of(v, tg_relid, tg_op), HINT = v.hint,
    SCHEMA = tg_table_schema, TABLE = tg_table_name;
END $$;
REVOKE ALL ON FUNCTION fence.guard_rows() FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.guard_rows() TO fence_protector;

-- Returns why the expression of a probe's index can't be a resource per row, or NULL if it can. The index itself has proven that
-- it is one expression, immutable and without subqueries. Objects that come with PostgreSQL are pinned: they are not in
-- pg_depend.
--
-- Every type in its tree is from a closed list, whose text is the same under all settings. The functions that print float,
-- interval and bytea are declared immutable, but depend on extra_float_digits, IntervalStyle and bytea_output. Those that print
-- date and timestamp are not declared immutable.
CREATE OR REPLACE FUNCTION fence.expression_fault(p_index regclass) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN i.indexprs IS NULL OR i.indnatts <> 1 OR i.indpred IS NOT NULL THEN 'is not one expression'
    WHEN EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index
                    AND (d.refclassid <> 'pg_class'::regclass OR d.refobjid <> i.indrelid))
      THEN 'uses a function, an operator, a type or a collation that does not come with PostgreSQL: make it a generated column, and name that'
    WHEN i.indexprs::text ~ (':funcid ' || 'quote_ident(text)'::regprocedure::oid || ' ')
      THEN 'uses quote_ident, which goes by the setting quote_all_identifiers: make it a generated column, and name that'
    WHEN i.indexprs::text ~ ':varattno (0|-[0-9]+) ' THEN 'uses the whole row or a system column: name its columns'
    WHEN NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index AND d.refobjsubid > 0)
      THEN 'uses no column: give resource instead'
    WHEN EXISTS (SELECT FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid JOIN pg_type t ON t.oid = a.atttypid
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index AND (t.oid >= 16384 OR t.typtype <> 'b'))
      THEN 'uses a column whose type does not come with PostgreSQL: make it a generated column, and name that'
    WHEN t.printed IS NOT NULL
      THEN format('uses the type %s, whose text may depend on a setting of the session: make it a generated column, and name that', t.printed)
  END
  FROM (VALUES (p_index)) p(oid) LEFT JOIN pg_index i ON i.indexrelid = p.oid,
       LATERAL (SELECT min(m[1]::oid::regtype::text) AS printed
                  FROM regexp_matches(i.indexprs::text, ':[a-zA-Z_]*typ(?:e|eid|eId|id) ([0-9]+)', 'g') m
                 WHERE m[1]::oid >= 16   -- below 16 it is the kind of a test (:nulltesttype 1)
                   AND NOT EXISTS (SELECT FROM unnest(ARRAY['boolean', '"char"', 'name', 'bigint', 'smallint', 'integer', 'text', 'json', 'jsonb', 'bpchar',
                                                            'varchar', 'date', 'timestamp', 'numeric', 'uuid']::regtype[]) a(type)
                                     JOIN pg_type k ON k.oid = a.type WHERE m[1]::oid IN (k.oid, k.typarray))) t
$$;
REVOKE ALL ON FUNCTION fence.expression_fault(regclass) FROM PUBLIC, fence_writer, fence_gateway;

-- Creates resource_of_N over an index's expression. The text comes from the catalogue and never from a caller, who could pass
-- anything. resource_of_N keeps it as a parsed tree, which no setting of the writer changes. It is STABLE, because PostgreSQL
-- declares the operator of 'orders/' || id so: an IMMUTABLE function would not be inlined, and planned for each statement.
CREATE OR REPLACE FUNCTION fence.make_resource(p_number integer, p_index regclass) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := fence.expression_fault(p_index);
  expression text;
  parameters text;
BEGIN
  PERFORM fence.tidy();
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'fence.protect: per_row %', fault USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT min(pg_get_expr(i.indexprs, i.indrelid)), string_agg(format('%I %s', a.attname, format_type(a.atttypid, NULL)), ', ' ORDER BY a.attnum)
    INTO expression, parameters
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
   WHERE i.indexrelid = p_index AND a.attnum IN (SELECT d.refobjsubid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index);
  EXECUTE format('CREATE FUNCTION fence.resource_of_%s(%s) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE RETURN %s', p_number, parameters, expression);
END $$;
REVOKE ALL ON FUNCTION fence.make_resource(integer, regclass) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns an expression for the resource of a row x; NULL without a resource per row.
--
-- A column can change its type, and then a user's own cast would name the resource. So a row of another type has none.
CREATE OR REPLACE FUNCTION fence.row_resource(p_number integer) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('CASE WHEN %s THEN fence.%I(%s) COLLATE pg_catalog."C" END',
           (SELECT string_agg(format('pg_catalog.pg_typeof(x."%s") OPERATOR(pg_catalog.=) %s::pg_catalog.oid', replace(c.name, '"', '""'), c.type), ' AND ' ORDER BY c.n)
              FROM unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY c(name, type, n)), p.proname,
           (SELECT string_agg(format('x."%s"', replace(c.name, '"', '""')), ', ' ORDER BY c.n) FROM unnest(p.proargnames) WITH ORDINALITY c(name, n)))
    FROM pg_proc p WHERE p.pronamespace = 'fence'::regnamespace AND p.proname = 'resource_of_' || p_number
$$;
REVOKE ALL ON FUNCTION fence.row_resource(integer) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns an expression for the token in a row x; NULL if no column is stamped.
CREATE OR REPLACE FUNCTION fence.row_token(p_stamp text) RETURNS text LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('CASE WHEN pg_catalog.pg_typeof(x.%1$s) OPERATOR(pg_catalog.=) 20::pg_catalog.oid THEN x.%1$s::pg_catalog.int8 END', p_stamp)
$$;
REVOKE ALL ON FUNCTION fence.row_token(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Creates a trigger function of a protection, or replaces it, which locks no table. Its code runs under the writer's settings.
-- So it qualifies every name and holds no backslash, and no IN, IS DISTINCT FROM or nullif, which look for an operator "=" along
-- the search_path. Its variables are qualified by the block's name, because a column may have the same name. The number is that
-- of make_rows. The code is quoted as a literal: a user's name could end a dollar quote.
CREATE OR REPLACE FUNCTION fence.make_trigger(p_kind text, p_number integer, p_code text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('CREATE OR REPLACE FUNCTION fence.%s_%s() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY INVOKER AS %L', p_kind, p_number, p_code);
  EXECUTE format('REVOKE ALL ON FUNCTION fence.%s_%s FROM PUBLIC', p_kind, p_number);
  EXECUTE format('GRANT EXECUTE ON FUNCTION fence.%s_%s TO fence_protector', p_kind, p_number);
END $$;
REVOKE ALL ON FUNCTION fence.make_trigger(text, integer, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Creates rows_N, which judges the rows after a statement. p_resource: see fence.row_resource. The trigger's arguments:
-- 'enforce' or 'report'; the resource that is needed, '' if it depends on the row.
--
-- The common case asks the judge once. rows_N reads the presented name once, and compares the names of all rows with it. Then it
-- asks the judge for that name, which reads the settings itself. So the verdict is about the names of the rows as stored,
-- however the statement changed its settings.
CREATE OR REPLACE FUNCTION fence.make_judging(p_number integer, p_resource text, p_stamp text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  resource text := coalesce(p_resource, 'NULL::pg_catalog.text');
  token text := coalesce(fence.row_token(p_stamp), 'NULL::pg_catalog.int8');
  misfit_old text := '(' || p_resource || ' OPERATOR(pg_catalog.=) judged.presented) IS NOT TRUE';
  misfit_new text := concat_ws(' OR ', misfit_old, '(' || fence.row_token(p_stamp) || ' OPERATOR(pg_catalog.=) judged.number) IS NOT TRUE');
BEGIN
  PERFORM fence.make_trigger('rows', p_number, format($f$
<<judged>>
DECLARE
  presented pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  number pg_catalog.int8 := %9$s;   -- of the presented token, where rows are stamped
  recorded pg_catalog.int8;
  misfits pg_catalog.bool;
  olds pg_catalog.text[];
  news pg_catalog.text[];
  tokens pg_catalog.int8[];
  needed pg_catalog.text := CASE WHEN tg_argv[1] OPERATOR(pg_catalog.<>) '' THEN tg_argv[1] END;
  relation pg_catalog.text;
BEGIN
  IF tg_argv[0] OPERATOR(pg_catalog.=) 'enforce' AND %2$s THEN   -- the common case: every row is of the one grant
    IF pg_catalog.strpos(judged.presented, '%%') OPERATOR(pg_catalog.>) 0 THEN
      judged.presented := fence.unescape(judged.presented);
    END IF;
    IF tg_op OPERATOR(pg_catalog.=) 'INSERT' THEN
      judged.misfits := EXISTS (SELECT FROM new_rows x WHERE %4$s);
    ELSIF tg_op OPERATOR(pg_catalog.=) 'DELETE' THEN
      judged.misfits := %3$s;
    ELSE
      judged.misfits := EXISTS (SELECT FROM new_rows x WHERE %4$s) OR %3$s;
    END IF;
    IF NOT judged.misfits THEN
      judged.recorded := fence.judge(judged.presented);
      IF %10$s THEN
        RETURN NULL;
      END IF;
    END IF;
  END IF;

  judged.relation := pg_catalog.format('%%I.%%I', tg_table_schema, tg_table_name);
  BEGIN
    IF tg_op OPERATOR(pg_catalog.<>) 'INSERT' THEN
      judged.olds := %5$s;
    END IF;
    IF tg_op OPERATOR(pg_catalog.<>) 'DELETE' THEN
      SELECT pg_catalog.array_agg(d.r), pg_catalog.array_agg(d.t) INTO judged.news, judged.tokens
        FROM (SELECT DISTINCT %6$s AS r, %7$s AS t FROM new_rows x) d;
    END IF;
  EXCEPTION WHEN OTHERS THEN   -- of the expression
    IF tg_argv[0] OPERATOR(pg_catalog.<>) 'report' THEN
      RAISE;
    END IF;
    PERFORM fence.judge_report(judged.relation, tg_op, %1$s, NULL, sqlstate, sqlerrm);
    RETURN NULL;
  END;
  IF tg_argv[0] OPERATOR(pg_catalog.=) 'report' THEN
    PERFORM fence.judge_report(judged.relation, tg_op, %1$s, pg_catalog.array_cat(judged.olds, judged.news), NULL, NULL);
  ELSE
    PERFORM fence.judge_rows(judged.relation, judged.olds, judged.news, %8$s, judged.needed);
  END IF;
  RETURN NULL;
END $f$,
    p_number,
    CASE WHEN p_resource IS NOT NULL THEN $f$judged.presented OPERATOR(pg_catalog.<>) ''$f$
         ELSE $f$(tg_argv[1] OPERATOR(pg_catalog.=) judged.presented OR pg_catalog.right(tg_argv[1], 1) OPERATOR(pg_catalog.=) '*'
         AND pg_catalog.starts_with(judged.presented, pg_catalog.left(tg_argv[1], -1)))$f$ END,
    coalesce('EXISTS (SELECT FROM old_rows x WHERE ' || misfit_old || ')', 'false'), misfit_new,
    CASE WHEN p_resource IS NULL THEN 'NULL' ELSE format('ARRAY(SELECT DISTINCT %s FROM old_rows x)', resource) END,
    resource, token, CASE WHEN p_stamp IS NULL THEN 'NULL' ELSE 'judged.tokens' END,
    CASE WHEN p_stamp IS NULL THEN 'NULL' ELSE
      $f$CASE WHEN pg_catalog.split_part(pg_catalog.current_setting('fence.token', true), '.', 1) OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,17}$'
    THEN pg_catalog.split_part(pg_catalog.current_setting('fence.token', true), '.', 1)::pg_catalog.int8 END$f$ END,
    CASE WHEN p_stamp IS NULL THEN 'judged.recorded IS NOT NULL' ELSE 'judged.recorded OPERATOR(pg_catalog.=) judged.number' END));
END $$;
REVOKE ALL ON FUNCTION fence.make_judging(integer, text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Creates stamp_N, which fills the column before a row is stored. It takes the number from the settings; the judge refuses the
-- statement if the grant that it verifies has another one. A logical replication worker presents no grant: the publisher has
-- stamped its rows. p_stamp is always quoted: format's %I does not quote words that only PL/pgSQL reserves. SQL reads the row's
-- columns, and reserves none of these words.
CREATE OR REPLACE FUNCTION fence.make_stamp(p_number integer, p_resource text, p_stamp text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fence.make_trigger('stamp', p_number, format($f$
<<judged>>
DECLARE
  presented pg_catalog.text := pg_catalog.split_part(pg_catalog.current_setting('fence.token', true), '.', 1);
  listed pg_catalog.text := pg_catalog.current_setting('fence.grants', true);
BEGIN
  IF pg_catalog.pg_typeof(new.%1$s) OPERATOR(pg_catalog.<>) 20::pg_catalog.oid THEN
    RAISE EXCEPTION 'the stamped column is no bigint' USING ERRCODE = 'datatype_mismatch';
  END IF;
  IF judged.presented OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,17}$' AND (judged.listed IS NULL OR judged.listed OPERATOR(pg_catalog.=) '') THEN
    new.%1$s := judged.presented::pg_catalog.int8;
  ELSIF pg_catalog.concat(judged.presented, judged.listed) OPERATOR(pg_catalog.<>) ''
        OR pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.<>) 'replica' THEN
    new.%1$s := fence.judge_stamp(%2$s);   -- of several grants that of the row, or a seal's token
  END IF;
  RETURN new;
END $f$, p_stamp, coalesce('(SELECT ' || p_resource || ' FROM (SELECT new.*) x)', $f$CASE WHEN tg_argv[1] OPERATOR(pg_catalog.<>) '' THEN tg_argv[1] END$f$)));
END $$;
REVOKE ALL ON FUNCTION fence.make_stamp(integer, text, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Creates the trigger functions of a protection, or replaces them. p_stamp: the quoted column to stamp, or NULL.
CREATE OR REPLACE FUNCTION fence.make_triggers(p_number integer, p_stamp text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  resource text := fence.row_resource(p_number);
BEGIN
  IF resource IS NOT NULL THEN
    EXECUTE format('GRANT EXECUTE ON FUNCTION fence.resource_of_%s TO PUBLIC', p_number);   -- every writer evaluates it
  END IF;
  PERFORM fence.make_judging(p_number, resource, p_stamp);
  IF p_stamp IS NOT NULL THEN
    PERFORM fence.make_stamp(p_number, resource, p_stamp);
  END IF;
END $$;
REVOKE ALL ON FUNCTION fence.make_triggers(integer, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Creates the functions for rows, and returns their number. p_index: an index over the expression, on a table with the columns
-- of the protected one; NULL: no resource per row. p_stamp: the column to stamp, or NULL.
CREATE OR REPLACE FUNCTION fence.make_rows(p_index regclass, p_stamp name) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  number integer := nextval('fence.protections');
  stamp text := '"' || replace(p_stamp, '"', '""') || '"';
BEGIN
  PERFORM fence.tidy();
  IF p_index IS NOT NULL THEN
    PERFORM fence.make_resource(number, p_index);
  END IF;
  PERFORM fence.make_triggers(number, stamp), fence.make_moved(number, stamp);
  EXECUTE format('COMMENT ON FUNCTION fence.rows_%s IS %L', number, format('generation %s', fence.generation()));
  RETURN number;
END $$;
REVOKE ALL ON FUNCTION fence.make_rows(regclass, name) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.make_rows(regclass, name) TO fence_protector;

-- Drops the functions of protections that no trigger belongs to any longer, except those of p_but, which is being created. A
-- caller that creates more tidies first, so unused ones do not accumulate.
CREATE OR REPLACE FUNCTION fence.tidy(p_but integer DEFAULT NULL) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n text;
BEGIN
  FOR n IN SELECT p.oid::regprocedure::text FROM pg_proc p
            WHERE p.pronamespace = 'fence'::regnamespace AND p.proname ~ '^(rows|stamp|moved|resource_of)_[0-9]+$'
              AND substring(p.proname FROM '[0-9]+$') IS DISTINCT FROM p_but::text
              AND NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                               WHERE f.pronamespace = p.pronamespace AND f.proname ~ concat('^(rows|stamp)_', substring(p.proname FROM '[0-9]+$'), '$')) LOOP
    EXECUTE format('DROP FUNCTION IF EXISTS %s', n);   -- another session may be tidying, too
  END LOOP;
  FOR n IN SELECT c.relname FROM pg_class c
            WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^refused_[0-9]+$'
              AND substring(c.relname FROM '[0-9]+$') IS DISTINCT FROM p_but::text
              AND NOT EXISTS (SELECT FROM fence.registry r WHERE 'refused_' || r.number = c.relname)
              AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = 'fence.report'::regproc AND 'refused_' || (fence.arguments(t.tgargs))[4] = c.relname) LOOP
    EXECUTE format('DROP SEQUENCE IF EXISTS fence.%I', n);
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.tidy(integer) FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.tidy(integer) TO fence_protector;
