SET ROLE fence_owner;

CREATE OR REPLACE FUNCTION fence.holders_named(p_key bigint) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(string_agg(CASE WHEN pid IS NULL THEN format('prepared transaction %L', gid) ELSE format('process %s', pid) END, ', '),
                  'a transaction that has just ended') FROM fence.holders(p_key)
$$;

CREATE OR REPLACE FUNCTION fence.arming_named(p_resource text) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN format('prepared transaction %L', p.gid) ELSE format('process %s', l.pid) END, ', '),
                  'a transaction that has just ended')
    FROM pg_locks l LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
   WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
     AND (l.transactionid = (SELECT a.xmax FROM fence.arms a WHERE a.resource = p_resource)
          OR l.relation = 'fence.arms'::regclass AND l.mode = 'RowExclusiveLock'
             AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
             AND NOT EXISTS (SELECT FROM fence.arms a WHERE a.resource = p_resource))
$$;

CREATE OR REPLACE FUNCTION fence.end_holders(p_key bigint, OUT told int, OUT held_by text) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  h record;
BEGIN
  told := 0;
  FOR h IN SELECT * FROM fence.holders(p_key) x WHERE x.writer LOOP
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

CREATE OR REPLACE FUNCTION fence.make_stamp(p_number integer, p_stamp name, p_resource text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION fence.stamp_%s() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS %L', p_number, format($f$
DECLARE
  presented pg_catalog.text := pg_catalog.split_part(pg_catalog.current_setting('fence.token', true), '.', 1);
  listed pg_catalog.text := pg_catalog.current_setting('fence.grants', true);
  x record;
  v fence.verdict;
BEGIN
  IF pg_catalog.pg_typeof(new.%1$I) OPERATOR(pg_catalog.<>) 20::pg_catalog.oid THEN
    RAISE EXCEPTION 'the stamped column is no bigint' USING ERRCODE = 'datatype_mismatch';
  END IF;
  IF presented OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,17}$' AND (listed IS NULL OR listed OPERATOR(pg_catalog.=) '') THEN
    new.%1$I := presented::pg_catalog.int8;
    RETURN new;
  ELSIF pg_catalog.concat(presented, listed) OPERATOR(pg_catalog.=) '' AND pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.=) 'replica' THEN
    RETURN new;
  END IF;
  x := new;
  v := fence.verify_settings(%2$s);   -- of several grants that of the row, or a seal's token
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  new.%1$I := v.token;
  RETURN new;
END $f$, p_stamp, coalesce(p_resource, $f$CASE WHEN tg_argv[1] OPERATOR(pg_catalog.<>) '' THEN tg_argv[1] END$f$)));
  EXECUTE format('REVOKE ALL ON FUNCTION fence.stamp_%s FROM PUBLIC', p_number);
  EXECUTE format('GRANT EXECUTE ON FUNCTION fence.stamp_%s TO fence_writer', p_number);
END $$;

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate schema version 46';
