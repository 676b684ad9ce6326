-- Whoever is in the way of arming is named also where it is a prepared transaction that raised the fence: that was NULL. And one
-- that COMMIT PREPARED or ROLLBACK PREPARED is just ending is nobody in the way: to draining that was NULL, too, and failed it.
-- And columns may have names that PL/pgSQL keeps for itself, such as "begin": nothing could be written to a table with such a stamp.
SET ROLE fence_owner;

-- As before, but leaves out what has just ended. For a moment pg_locks has locks of a transaction that pg_prepared_xacts no
-- longer names.
CREATE OR REPLACE FUNCTION fence.holders_named(p_key bigint) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(string_agg(CASE WHEN pid IS NULL THEN format('prepared transaction %L', gid) ELSE format('process %s', pid) END, ', '),
                  'a transaction that has just ended') FROM fence.holders(p_key) WHERE pid IS NOT NULL OR gid IS NOT NULL
$$;

-- Names who holds a resource's row in fence.arms: whose transaction is its xmax. Who had to wait for its turn, or inserted the
-- row, did so in a subtransaction, whose number tells nobody anything; but it has the table's lock for writing.
CREATE OR REPLACE FUNCTION fence.arming_named(p_resource text) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  WITH l AS MATERIALIZED (
    SELECT k.pid, k.locktype, k.mode, k.transactionid, k.virtualtransaction,
           k.relation = 'fence.arms'::regclass AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AS of_arms
      FROM pg_locks k WHERE k.granted AND k.pid IS DISTINCT FROM pg_backend_pid()
  ), holding AS (
    SELECT l.pid, l.virtualtransaction FROM l WHERE l.transactionid = (SELECT a.xmax FROM fence.arms a WHERE a.resource = p_resource)
  ), in_the_way AS (
    SELECT h.pid, h.virtualtransaction FROM holding h
    UNION
    SELECT l.pid, l.virtualtransaction FROM l WHERE l.of_arms AND l.mode = 'RowExclusiveLock' AND NOT EXISTS (SELECT FROM holding)
  )
  SELECT coalesce(string_agg(DISTINCT CASE WHEN w.pid IS NULL THEN format('prepared transaction %L', p.gid) ELSE format('process %s', w.pid) END, ', '),
                  'a transaction that has just ended')
    FROM in_the_way w
    LEFT JOIN l x ON w.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = w.virtualtransaction AND x.locktype = 'transactionid'
    LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
   WHERE w.pid IS NOT NULL OR p.gid IS NOT NULL
$$;

-- As before, but one that has just ended is waited for.
CREATE OR REPLACE FUNCTION fence.end_holders(p_key bigint, OUT told int, OUT held_by text) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  h record;
BEGIN
  told := 0;
  FOR h IN SELECT * FROM fence.holders(p_key) x WHERE x.writer AND (x.pid IS NOT NULL OR x.gid IS NOT NULL) LOOP
    IF h.pid IS NULL THEN
      held_by := format('prepared transaction %L; ROLLBACK PREPARED or COMMIT PREPARED it', h.gid);
    ELSE
      BEGIN
        told := told + pg_terminate_backend(h.pid)::int;
      EXCEPTION WHEN insufficient_privilege THEN
        held_by := format('process %s, which %I may not end (%s)', h.pid, current_user, sqlerrm)
          || CASE WHEN pg_has_role(current_user, 'pg_signal_backend', 'USAGE') THEN ''
                  ELSE format('; as a superuser: GRANT pg_signal_backend TO %I', current_user) END;
      END;
    END IF;
  END LOOP;
END $$;

-- As before, but quotes the stamp's name whatever it is, because format's %I leaves out what only PL/pgSQL keeps for itself, and
-- reads the row's columns in SQL, which knows none of these words.
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

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate schema version 47';
