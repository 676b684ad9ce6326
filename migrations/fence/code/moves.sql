-- Rows that no trigger after a statement sees.
--
-- A statement that is stopped. In PL/Perl, PL/Tcl or PL/Python a function can run INSERT, UPDATE or DELETE with RETURNING for a
-- limited number of rows (spi_exec_query(query, 1)). PostgreSQL then ends the statement early, keeps its rows, and fires no
-- trigger AFTER STATEMENT; those for each row fire. So if the database has such a language, a trigger judges each row. A row then
-- costs as much as a statement; other databases are spared it. If the language came after the protection, fence.uncovered lists
-- the table until it is protected again. C functions can do the same; only a superuser creates them.
--
-- Rows that move between partitions. UPDATE shows moved rows in its transition tables. MERGE does not (PostgreSQL 15): if only
-- its UPDATE moves a row, the triggers AFTER UPDATE fire with empty tables, and those of the move's DELETE and INSERT do not
-- fire. So each partition has a trigger for each row, which judges the rows deleted from it and inserted into it. It fires only
-- in transactions that began an UPDATE (or a MERGE that can do one) of a partitioned table under the fence.
--
-- A writer must not be able to undo the mark while its statement runs. It can undo a setting. It can't undo the statistics of
-- this session: a block read stays counted, and PostgreSQL reports the counts and resets them to 0 only between two
-- transactions, about once a second. So fence.mark_move reads the sequence fence.protections before the statement, and
-- fence.moving asks how often this transaction read it. If track_counts is off, each row is judged.

-- Returns whether rows may be moving.
CREATE OR REPLACE FUNCTION fence.moving() RETURNS boolean LANGUAGE sql VOLATILE
RETURN pg_catalog.pg_stat_get_xact_blocks_fetched('fence.protections'::pg_catalog.regclass) OPERATOR(pg_catalog.>) 0
    OR pg_catalog.current_setting('track_counts') OPERATOR(pg_catalog.<>) 'on';
REVOKE ALL ON FUNCTION fence.moving() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.moving() TO PUBLIC;

-- The trigger BEFORE UPDATE of a partitioned table, for each statement.
CREATE OR REPLACE FUNCTION fence.mark_move() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  last pg_catalog.int8 := pg_catalog.pg_sequence_last_value('fence.protections'::pg_catalog.regclass);
BEGIN
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.mark_move() FROM PUBLIC, fence_writer, fence_gateway, fence_protector;
GRANT EXECUTE ON FUNCTION fence.mark_move() TO fence_protector;

-- Returns whether the database has a language whose functions can stop a statement. fence.put_guards has the same text.
CREATE OR REPLACE FUNCTION fence.can_stop() RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pg_language l WHERE l.lanname NOT IN ('internal', 'c', 'sql', 'plpgsql'))
$$;
REVOKE ALL ON FUNCTION fence.can_stop() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.can_stop() TO PUBLIC;

-- Creates moved_N, the trigger after each row. Its arguments are those of rows_N, and it follows the same rules.
CREATE OR REPLACE FUNCTION fence.make_moved(p_number integer, p_stamp text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  resource text := fence.row_resource(p_number);
BEGIN
  PERFORM fence.make_trigger('moved', p_number, format($f$
<<judged>>
DECLARE
  relation pg_catalog.text := pg_catalog.format('%%I.%%I', tg_table_schema, tg_table_name);
  olds pg_catalog.text[];
  news pg_catalog.text[];
  tokens pg_catalog.int8[];
BEGIN
  IF tg_op OPERATOR(pg_catalog.<>) 'INSERT' THEN
    judged.olds := ARRAY(SELECT %2$s FROM (SELECT old.*) x);
  END IF;
  IF tg_op OPERATOR(pg_catalog.<>) 'DELETE' THEN
    judged.news := ARRAY(SELECT %2$s FROM (SELECT new.*) x);
    judged.tokens := %3$s;
  END IF;
  IF tg_argv[0] OPERATOR(pg_catalog.=) 'report' THEN
    PERFORM fence.judge_report(judged.relation, tg_op, %1$s, pg_catalog.array_cat(judged.olds, judged.news), NULL, NULL);
  ELSE
    PERFORM fence.judge_rows(judged.relation, judged.olds, judged.news, judged.tokens, CASE WHEN tg_argv[1] OPERATOR(pg_catalog.<>) '' THEN tg_argv[1] END);
  END IF;
  RETURN NULL;
END $f$, p_number, coalesce(resource, 'NULL::pg_catalog.text'),
    coalesce('ARRAY(SELECT ' || fence.row_token(p_stamp) || ' FROM (SELECT new.*) x)', 'NULL')));
END $$;
REVOKE ALL ON FUNCTION fence.make_moved(integer, text) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns whether a table has its triggers for such rows. A partitioned table has the mark (tgtype 18: BEFORE STATEMENT, UPDATE).
-- A table with rows has the judge of each row (21: AFTER ROW, INSERT, UPDATE; 29: DELETE, too, if there is a resource per row).
-- If no statement can be stopped, only partitions need it, without UPDATE (5, 13), for moved rows.
CREATE OR REPLACE FUNCTION fence.judges_each(p_relation regclass, p_number integer, p_per_row boolean, p_mode text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.relkind NOT IN ('r', 'p') OR c.relkind = 'r' AND NOT c.relispartition AND NOT s.stops OR EXISTS (
           SELECT FROM pg_trigger t
            WHERE t.tgrelid = p_relation AND t.tgenabled = 'A' AND t.tgattr::text = ''
              AND CASE WHEN c.relkind = 'p' THEN t.tgfoid = 'fence.mark_move'::regproc AND t.tgtype = 18 AND t.tgqual IS NULL
                       ELSE t.tgfoid = to_regproc('fence.moved_' || p_number) AND (
                              t.tgtype = CASE WHEN p_per_row THEN 29 ELSE 21 END AND t.tgqual IS NULL
                           OR t.tgtype = CASE WHEN p_per_row THEN 13 ELSE 5 END AND NOT s.stops
                              AND strpos(pg_get_triggerdef(t.oid), ' WHEN (fence.moving()) EXECUTE ') > 0) END)
    FROM pg_class c, LATERAL (SELECT p_mode = 'enforce' AND fence.can_stop() AS stops) s WHERE c.oid = p_relation
$$;
REVOKE ALL ON FUNCTION fence.judges_each(regclass, integer, boolean, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION fence.judges_each(regclass, integer, boolean, text) TO PUBLIC;
