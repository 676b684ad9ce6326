-- A resource for each row, and the column that names the token which wrote a row.
--
--   SELECT fence.protect('orders', per_row => $$'orders/' || id$$);             -- see protect.sql
--   SELECT fence.protect('orders', under => 'orders/', stamp => 'token');
--
-- How. Beside the guard before each statement stand triggers AFTER the statement. They see every row that it wrote, as it was
-- stored, in transition tables; read the settings once; check that grant; and look whether each row is its. So neither a BEFORE
-- trigger that runs later, nor a setting that the statement itself changes on its way (INSERT ... SELECT set_config(...)), slips
-- past; a comparison row by row, in a WHEN clause, would let that one through. It costs one check per statement and one scan.
--
-- Facts behind it, each tested: rows that are moved between partitions, written by MERGE, COPY, ON CONFLICT or a foreign key's
-- cascade are all in the transition tables of the table that the statement names; an apply worker of logical replication fires
-- no statement trigger, so it passes.
--
-- Whose code runs. The checks read fence.resources, so they run with the rights of fence_owner, and so must the expression,
-- because only the trigger itself sees the transition tables. Therefore an expression may use what PostgreSQL itself brings, and
-- nothing else. Whoever needs more makes it a generated column, which runs with the writer's rights, and names that.
--
-- Whose names. A transition table is found by its bare name, and where a trigger was made without one, the same name finds a view of
-- whoever made it, whose functions would run here (tested). So rows_N looks into pg_trigger before it looks at rows. And no name of
-- a user's may stand inside a dollar quote, which it could end: the code is quoted as a literal.

-- The generation of what fence.make_rows makes: raise it with each change of the functions that it writes. Those that are there
-- stay as they are, and go on working, until fence.refresh makes them anew; fence.outdated lists them.
CREATE OR REPLACE FUNCTION fence.generation() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1 $$;
REVOKE ALL ON FUNCTION fence.generation() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.generation() TO PUBLIC;

-- The guard before each statement on a table with a resource per row, see fence.protect: a write of no rows, too, needs a
-- current grant. Its arguments are for people: the expression and the number.
CREATE OR REPLACE FUNCTION fence.guard_rows() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  r pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  v fence.verdict;
BEGIN
  IF tg_op OPERATOR(pg_catalog.<>) 'TRUNCATE' THEN
    IF fence.fast_check(r, pg_catalog.current_setting('fence.token', true)) IS NOT NULL THEN
      RETURN NULL;
    END IF;
    v := fence.verify_settings(NULL);
  ELSE
    v := fence.refusal('ZF004', pg_catalog.format('TRUNCATE of %s, whose rows belong to a resource each', tg_relid::pg_catalog.regclass),
                       NULL, NULL, NULL, NULL, 'DELETE the rows of your resource.');
  END IF;
  IF v.state IS NULL OR (v.state OPERATOR(pg_catalog.=) 'ZF002' OR tg_op OPERATOR(pg_catalog.=) 'TRUNCATE') AND fence.replicates() THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
END $$;
REVOKE ALL ON FUNCTION fence.guard_rows() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.guard_rows() TO fence_writer;

-- Why the expression of a probe's index can't be a resource per row, or NULL where it can. The index itself has proven that it
-- is one expression, immutable and without subqueries. What PostgreSQL itself brings is pinned: it appears in no pg_depend.
CREATE OR REPLACE FUNCTION fence.expression_fault(p_index regclass) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN i.indexprs IS NULL OR i.indnatts <> 1 OR i.indpred IS NOT NULL THEN 'is not one expression'
    WHEN EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index
                    AND (d.refclassid <> 'pg_class'::regclass OR d.refobjid <> i.indrelid))
      THEN 'uses a function, an operator, a type or a collation that does not come with PostgreSQL: make it a generated column, and name that'
    WHEN i.indexprs::text ~ ':varattno (0|-[0-9]+) ' THEN 'uses the whole row or a system column: name its columns'
    WHEN NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index AND d.refobjsubid > 0)
      THEN 'uses no column: give resource instead'
    WHEN EXISTS (SELECT FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid JOIN pg_type t ON t.oid = a.atttypid
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index AND (t.oid >= 16384 OR t.typtype <> 'b'))
      THEN 'uses a column whose type does not come with PostgreSQL: make it a generated column, and name that'
  END
  FROM pg_index i WHERE i.indexrelid = p_index
$$;
REVOKE ALL ON FUNCTION fence.expression_fault(regclass) FROM PUBLIC, fence_writer, fence_gateway;

-- Makes the functions for rows, and returns their number. p_index: an index over the expression, on a table with the columns of
-- the protected one; NULL: no resource per row. p_stamp: the column to stamp, or NULL. The expression is taken from the catalogue
-- and never from a caller's text, which could be anything; resource_of_N keeps it as a parsed tree, deaf to any search_path.
--
-- A trigger function can be put on any table of a fence_writer's, and a column can change its type: an implicit cast of somebody's
-- own must not run here. So pg_typeof (20 is bigint) comes first, and a row of another type has no resource.
--
-- The generated code qualifies every name, instead of a SET clause, which costs: so no IN, IS DISTINCT FROM or nullif either,
-- which look for an operator "=" along the search_path.
CREATE OR REPLACE FUNCTION fence.make_rows(p_index regclass, p_stamp name) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  number integer := nextval('fence.protections');
  fault text := fence.expression_fault(p_index);
  expression text;
  parameters text;
  arguments text;                                     -- the columns of a row x
  types text;                                         -- whether they still have the types that were looked at
  resource text := 'NULL::pg_catalog.text';           -- of a row x
  token text := 'NULL::pg_catalog.int8';              -- in a row x
  fits text := 'true';                                -- whether the settings may be tried the fast way
  misfit_old text;                                    -- whether a row x is not of that grant
  misfit_new text;
BEGIN
  IF fault IS NOT NULL THEN
    RAISE EXCEPTION 'fence.protect: per_row %', fault USING ERRCODE = 'invalid_parameter_value';
  ELSIF p_index IS NOT NULL THEN
    SELECT min(pg_get_expr(i.indexprs, i.indrelid)),
           string_agg(format('%I %s', a.attname, format_type(a.atttypid, NULL)), ', ' ORDER BY a.attnum),
           string_agg(format('x.%I', a.attname), ', ' ORDER BY a.attnum),
           string_agg(format('pg_catalog.pg_typeof(x.%I) OPERATOR(pg_catalog.=) %s::pg_catalog.oid', a.attname, a.atttypid::oid), ' AND ')
      INTO expression, parameters, arguments, types
      FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
     WHERE i.indexrelid = p_index AND a.attnum IN (SELECT d.refobjsubid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p_index);
    EXECUTE format('CREATE FUNCTION fence.resource_of_%s(%s) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN %s', number, parameters, expression);
    EXECUTE format('REVOKE ALL ON FUNCTION fence.resource_of_%s FROM PUBLIC', number);
    resource := format('CASE WHEN %s THEN fence.resource_of_%s(%s) COLLATE pg_catalog."C" END', types, number, arguments);
    misfit_old := format('(%s OPERATOR(pg_catalog.=) presented) IS NOT TRUE', resource);
  ELSE
    fits := $f$(tg_argv[1] OPERATOR(pg_catalog.=) presented OR pg_catalog.right(tg_argv[1], 1) OPERATOR(pg_catalog.=) '*'
         AND pg_catalog.starts_with(presented, pg_catalog.left(tg_argv[1], -1)))$f$;
  END IF;
  IF p_stamp IS NOT NULL THEN
    token := format('CASE WHEN pg_catalog.pg_typeof(x.%1$I) OPERATOR(pg_catalog.=) 20::pg_catalog.oid THEN x.%1$I::pg_catalog.int8 END', p_stamp);
    misfit_new := format('(%s OPERATOR(pg_catalog.=) recorded) IS NOT TRUE', token);
  END IF;
  misfit_new := concat_ws(' OR ', misfit_old, misfit_new);

  -- The trigger's arguments: 'enforce' or 'report'; the resource that is needed, '' where it depends on the row.
  EXECUTE format('CREATE FUNCTION fence.rows_%s() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS %L', number, format($f$
DECLARE
  presented pg_catalog.text := pg_catalog.current_setting('fence.resource', true);
  recorded pg_catalog.int8;
  misfits pg_catalog.bool;
  olds pg_catalog.text[];
  news pg_catalog.text[];
  tokens pg_catalog.int8[];
  needed pg_catalog.text := CASE WHEN tg_argv[1] OPERATOR(pg_catalog.<>) '' THEN tg_argv[1] END;
  v fence.verdict;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid OPERATOR(pg_catalog.=) tg_relid AND t.tgname OPERATOR(pg_catalog.=) tg_name
                    AND (tg_op OPERATOR(pg_catalog.=) 'DELETE' OR t.tgnewtable OPERATOR(pg_catalog.=) 'new_rows')
                    AND (tg_op OPERATOR(pg_catalog.=) 'INSERT' OR %9$s OR t.tgoldtable OPERATOR(pg_catalog.=) 'old_rows')) THEN
    RAISE EXCEPTION 'trigger %% of %% shows no rows, or is newer than this transaction', tg_name, tg_relid::pg_catalog.regclass
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Protect the table by fence.protect, or begin again.';
  END IF;

  -- The common case: every row is of the one grant.
  IF tg_argv[0] OPERATOR(pg_catalog.=) 'enforce' AND %2$s THEN
    recorded := fence.fast_check(presented, pg_catalog.current_setting('fence.token', true));
    IF recorded IS NOT NULL THEN
      IF tg_op OPERATOR(pg_catalog.=) 'INSERT' THEN
        misfits := EXISTS (SELECT FROM new_rows x WHERE %4$s);
      ELSIF tg_op OPERATOR(pg_catalog.=) 'DELETE' THEN
        misfits := %3$s;
      ELSE
        misfits := EXISTS (SELECT FROM new_rows x WHERE %4$s) OR %3$s;
      END IF;
      IF NOT misfits THEN
        RETURN NULL;
      END IF;
    END IF;
  END IF;

  BEGIN
    IF tg_op OPERATOR(pg_catalog.<>) 'INSERT' THEN
      olds := %5$s;
    END IF;
    IF tg_op OPERATOR(pg_catalog.<>) 'DELETE' THEN
      SELECT pg_catalog.array_agg(d.r), pg_catalog.array_agg(d.t) INTO news, tokens
        FROM (SELECT DISTINCT %6$s AS r, %7$s AS t FROM new_rows x) d;
    END IF;
  EXCEPTION WHEN OTHERS THEN   -- of the expression
    IF tg_argv[0] OPERATOR(pg_catalog.<>) 'report' THEN
      RAISE;
    END IF;
    PERFORM fence.log_refusal(tg_relid::pg_catalog.regclass, tg_op, '%1$s',
                              fence.refusal(sqlstate, pg_catalog.concat('the resource of a row: ', sqlerrm), NULL, NULL, NULL));
    RETURN NULL;
  END;
  IF tg_argv[0] OPERATOR(pg_catalog.=) 'report' THEN
    PERFORM fence.report_rows(tg_relid::pg_catalog.regclass, tg_op, pg_catalog.array_cat(olds, news), '%1$s');
    RETURN NULL;
  END IF;
  v := fence.judge_rows(tg_relid::pg_catalog.regclass, olds, NULL, needed);
  IF v.state IS NULL THEN
    v := fence.judge_rows(tg_relid::pg_catalog.regclass, news, %8$s, needed);
  END IF;
  IF v.state IS NULL OR v.state OPERATOR(pg_catalog.=) 'ZF002' AND fence.replicates() THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
END $f$,
    number, fits,
    coalesce('EXISTS (SELECT FROM old_rows x WHERE ' || misfit_old || ')', 'false'), misfit_new,
    CASE WHEN p_index IS NULL THEN 'NULL' ELSE format('ARRAY(SELECT DISTINCT %s FROM old_rows x)', resource) END,
    resource, token, CASE WHEN p_stamp IS NULL THEN 'NULL' ELSE 'tokens' END, (p_index IS NULL)::text));
  EXECUTE format('REVOKE ALL ON FUNCTION fence.rows_%s FROM PUBLIC', number);
  EXECUTE format('GRANT EXECUTE ON FUNCTION fence.rows_%s TO fence_writer', number);
  EXECUTE format('COMMENT ON FUNCTION fence.rows_%s IS %L', number, format('generation %s', fence.generation()));
  IF p_stamp IS NOT NULL THEN
    PERFORM fence.make_stamp(number, p_stamp, CASE WHEN p_index IS NOT NULL THEN resource END);
  END IF;
  RETURN number;
END $$;
REVOKE ALL ON FUNCTION fence.make_rows(regclass, name) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.make_rows(regclass, name) TO fence_writer;

-- Makes stamp_N, which fills the column before a row is stored. The number is taken from the settings as they are; rows_N
-- refuses the statement if the grant that it verifies has another one. p_resource: the resource of a row x. A worker of
-- logical replication presents no grant: the publisher has stamped its rows.
--
-- The stamp's name is always quoted: format's %I leaves out the quotes of words that only PL/pgSQL reserves. The row's columns are
-- read in SQL, which reserves none of these words.
CREATE OR REPLACE FUNCTION fence.make_stamp(p_number integer, p_stamp name, p_resource text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION fence.stamp_%s() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS %L', p_number, format($f$
DECLARE
  presented pg_catalog.text := pg_catalog.split_part(pg_catalog.current_setting('fence.token', true), '.', 1);
  listed pg_catalog.text := pg_catalog.current_setting('fence.grants', true);
  v fence.verdict;
BEGIN
  IF pg_catalog.pg_typeof(new.%1$s) OPERATOR(pg_catalog.<>) 20::pg_catalog.oid THEN
    RAISE EXCEPTION 'the stamped column is no bigint' USING ERRCODE = 'datatype_mismatch';
  END IF;
  IF presented OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,17}$' AND (listed IS NULL OR listed OPERATOR(pg_catalog.=) '') THEN
    new.%1$s := presented::pg_catalog.int8;
    RETURN new;
  ELSIF pg_catalog.concat(presented, listed) OPERATOR(pg_catalog.=) '' AND pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.=) 'replica' THEN
    RETURN new;
  END IF;
  v := fence.verify_settings(%2$s);   -- of several grants that of the row, or a seal's token
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  new.%1$s := v.token;
  RETURN new;
END $f$, '"' || replace(p_stamp, '"', '""') || '"', coalesce('(SELECT ' || p_resource || ' FROM (SELECT new.*) x)', $f$CASE WHEN tg_argv[1] OPERATOR(pg_catalog.<>) '' THEN tg_argv[1] END$f$)));
  EXECUTE format('REVOKE ALL ON FUNCTION fence.stamp_%s FROM PUBLIC', p_number);
  EXECUTE format('GRANT EXECUTE ON FUNCTION fence.stamp_%s TO fence_writer', p_number);
END $$;
REVOKE ALL ON FUNCTION fence.make_stamp(integer, name, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Drops what was made for protections that no trigger belongs to any longer.
CREATE OR REPLACE FUNCTION fence.tidy() RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n text;
BEGIN
  FOR n IN SELECT p.oid::regprocedure::text FROM pg_proc p
            WHERE p.pronamespace = 'fence'::regnamespace AND p.proname ~ '^(rows|stamp|resource_of)_[0-9]+$'
              AND NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                               WHERE f.pronamespace = p.pronamespace AND f.proname ~ concat('^(rows|stamp)_', substring(p.proname FROM '[0-9]+$'), '$')) LOOP
    EXECUTE format('DROP FUNCTION IF EXISTS %s', n);   -- somebody else may be tidying, too
  END LOOP;
  FOR n IN SELECT c.relname FROM pg_class c
            WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^refused_[0-9]+$'
              AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = 'fence.report'::regproc AND 'refused_' || (fence.arguments(t.tgargs))[4] = c.relname) LOOP
    EXECUTE format('DROP SEQUENCE IF EXISTS fence.%I', n);
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION fence.tidy() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.tidy() TO PUBLIC;
