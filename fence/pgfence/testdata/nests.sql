-- What the tests of locks work on: guarded tables, and the locks that a transaction must hold.
--
-- Whatever writes under a grant, raises a fence or changes an object leaves a row in `expected` for each lock that it relies on,
-- in the same subtransaction. state() names the locks that are missing for rows which the current transaction may still commit.

CREATE EXTENSION dblink;

CREATE TABLE expected (top xid8 DEFAULT pg_current_xact_id(), key bigint NOT NULL, exclusive boolean NOT NULL, what text NOT NULL);
CREATE INDEX ON expected (top);
CREATE TABLE grants (resource text PRIMARY KEY, token bigint NOT NULL, seal text NOT NULL);   -- seal: the secret itself
CREATE TABLE rows (id bigserial PRIMARY KEY, n int, note text);
CREATE TABLE bare (n int);                  -- its resource takes bare tokens
CREATE TABLE unguarded (n int);
CREATE TABLE busy (); -- another session keeps it locked
CREATE TABLE big AS SELECT n FROM generate_series(1, 3000) n;
ANALYZE big;

CREATE FUNCTION relies(p_key bigint, p_exclusive boolean, p_what text) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public AS $$
  INSERT INTO expected (key, exclusive, what) VALUES (p_key, p_exclusive, p_what)
$$;

-- How many locks the current transaction relies on, and which of them it does not hold.
CREATE FUNCTION state(OUT relied bigint, OUT lost text) LANGUAGE sql SECURITY DEFINER AS $$
  WITH held AS MATERIALIZED (
    SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, l.mode = 'ExclusiveLock' AS exclusive
      FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.objsubid = 1)
  SELECT count(*), coalesce(string_agg(DISTINCT e.what, '; ') FILTER (WHERE NOT EXISTS (SELECT FROM held h WHERE h.key = e.key AND h.exclusive = e.exclusive)), '')
    FROM expected e WHERE e.top = pg_current_xact_id_if_assigned()
$$;

-- The same where no statement can follow: raises PX001.
CREATE FUNCTION check_state() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  lost text := (SELECT s.lost FROM state() s);
BEGIN
  IF lost <> '' THEN
    RAISE EXCEPTION 'lost: %', lost USING ERRCODE = 'PX001';
  END IF;
END $$;

-- The same of a prepared transaction, whose rows nobody sees: p_relied is what it relied on before.
CREATE FUNCTION relied() RETURNS text LANGUAGE sql SECURITY DEFINER AS $$
  SELECT jsonb_build_object('top', pg_current_xact_id_if_assigned()::text,
    'locks', coalesce(jsonb_agg(jsonb_build_object('key', e.key, 'exclusive', e.exclusive, 'what', e.what)), '[]'))::text
    FROM expected e WHERE e.top = pg_current_xact_id_if_assigned()
$$;
CREATE FUNCTION lost_of_prepared(p_relied jsonb) RETURNS text LANGUAGE sql SECURITY DEFINER AS $$
  WITH held AS MATERIALIZED (
    SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, l.mode = 'ExclusiveLock' AS exclusive
      FROM pg_locks l JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid' AND x.pid IS NULL
     WHERE x.transactionid::text::bigint = (p_relied ->> 'top')::bigint & 4294967295
       AND l.pid IS NULL AND l.locktype = 'advisory' AND l.objsubid = 1)
  SELECT coalesce(string_agg(DISTINCT e.what, '; '), '') FROM jsonb_to_recordset(p_relied -> 'locks') e(key bigint, exclusive boolean, what text)
   WHERE NOT EXISTS (SELECT FROM held h WHERE h.key = e.key AND h.exclusive = e.exclusive)
$$;

-- A guarded row was written: by every presented grant that fits.
CREATE FUNCTION written() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO expected (key, exclusive, what)
  SELECT fence.key(r.resource, r.token, r.seal), false, format('shared of %s, by %s of %s', r.resource, tg_op, tg_relid::regclass) FROM fence.resources r
   WHERE starts_with(r.resource, tg_argv[0]) AND (r.resource = current_setting('fence.resource', true)
      OR r.resource = ANY (ARRAY(SELECT split_part(x, '=', 1) FROM string_to_table(current_setting('fence.grants', true), ',') x)));
  RETURN NULL;
END $$;
CREATE TRIGGER written AFTER INSERT OR UPDATE OR DELETE ON rows FOR EACH ROW EXECUTE FUNCTION written('u/');
CREATE TRIGGER written AFTER INSERT OR UPDATE OR DELETE ON bare FOR EACH ROW EXECUTE FUNCTION written('b/');

-- A fence was raised, or retired: each superseded grant is drained later, or its key is kept until then.
CREATE FUNCTION superseded() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO expected (key, exclusive, what)
  SELECT k, true, format('exclusive of a grant of %s, by its %s', old.resource, tg_op) FROM unnest(old.undrained || fence.key(old.resource, old.token, old.seal)) k
   WHERE tg_op = 'DELETE' OR k <> ALL (new.undrained);
  RETURN NULL;
END $$;
CREATE TRIGGER superseded AFTER UPDATE ON fence.resources FOR EACH ROW WHEN (old.token < new.token) EXECUTE FUNCTION superseded();
CREATE TRIGGER retired AFTER DELETE ON fence.resources FOR EACH ROW EXECUTE FUNCTION superseded();

-- An upload was deleted: parts that are under way have ended.
CREATE FUNCTION ended() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM relies(hashtextextended(old.id::text, 2), true, 'exclusive of an upload');
  RETURN NULL;
END $$;
CREATE TRIGGER ended AFTER DELETE ON objects.uploads FOR EACH ROW EXECUTE FUNCTION ended();

CREATE FUNCTION grant_of(p_resource text) RETURNS text LANGUAGE sql SECURITY DEFINER AS $$
  SELECT g.resource || '=' || g.token || '.' || g.seal FROM grants g WHERE g.resource = p_resource
$$;

CREATE FUNCTION new_blob(OUT id uuid) LANGUAGE sql SECURITY DEFINER AS $$ INSERT INTO objects.blobs (id) VALUES (gen_random_uuid()) RETURNING id $$;
CREATE FUNCTION new_hash() RETURNS bytea LANGUAGE sql AS $$ SELECT sha256(uuid_send(gen_random_uuid())) $$;

-- What a gateway does, with its rights and more.
CREATE FUNCTION as_gateway(kind text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  place CONSTANT text := 'bk';
  token bigint := (SELECT g.token FROM grants g WHERE g.resource = place);
  seal bytea := (SELECT sha256(convert_to(g.seal, 'UTF8')) FROM grants g WHERE g.resource = place);
  version uuid := gen_random_uuid();
  request text := gen_random_uuid();
  upload uuid;
  made uuid;
BEGIN
  IF kind IN ('arm', 'arm after raise', 'raise twice', 'group', 'group after raise', 'take', 'take after raise') AND NOT EXISTS (SELECT FROM fence.resources r WHERE r.resource = 'arm/2') THEN
    PERFORM fence.raise('arm/1', 1, new_hash(), ''), fence.raise('arm/2', 1, new_hash(), '');
  END IF;
  IF kind IN ('arm after raise', 'raise twice', 'group after raise', 'take after raise') THEN
    PERFORM fence.raise(r.resource, r.token + 1, new_hash(), '') FROM fence.resources r WHERE r.resource = 'arm/1';
  END IF;
  IF kind IN ('tags', 'restore') AND NOT EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = place AND p.key = 'k') THEN
    PERFORM objects.commit_put(gen_random_uuid(), place, 'k', new_blob(), 1, 'e', '{}', place, token, seal, NULL, NULL, false);
  END IF;
  CASE kind
  WHEN 'arm', 'arm after raise' THEN
    PERFORM fence.arm(r.resource, r.token + 1, new_hash(), '') FROM fence.resources r WHERE r.resource = 'arm/1';
  WHEN 'raise twice' THEN
    PERFORM fence.raise(r.resource, r.token + 1, new_hash(), '') FROM fence.resources r WHERE r.resource = 'arm/1';
  WHEN 'group', 'group after raise' THEN
    PERFORM fence.arm_group(array_agg(r.resource ORDER BY r.resource), array_agg(r.token + 1 ORDER BY r.resource), ARRAY[new_hash(), new_hash()], ARRAY['', ''])
       FROM fence.resources r WHERE r.resource IN ('arm/1', 'arm/2');
  WHEN 'take', 'take after raise' THEN
    PERFORM fence.take_leases(ARRAY['arm/1'], ARRAY[request], ARRAY[1::bigint], ARRAY[new_hash()], ARRAY[''], ARRAY[false]);
  WHEN 'retire' THEN
    IF NOT EXISTS (SELECT FROM fence.resources r WHERE r.resource = 'old/1') THEN
      PERFORM fence.raise('old/1', coalesce((SELECT max(f.floor) FROM fence.floors f), 0) + 1, new_hash(), '');
    END IF;
    UPDATE fence.resources r SET ended_at = now() - interval '1 h' WHERE r.resource = 'old/1';
    PERFORM fence.retire('1 min', 'old/', 1);
  WHEN 'issued' THEN
    PERFORM fence.check_issued(place, token);
    PERFORM relies(fence.key(place, token, seal), false, 'shared of an issued grant');
  WHEN 'put', 'puts', 'upload' THEN
    IF kind = 'put' THEN
      PERFORM objects.commit_put(version, place, 'k', new_blob(), 1, 'e', '{}', place, token, seal, request, NULL, false);
    ELSIF kind = 'puts' THEN
      PERFORM objects.commit_puts(ARRAY[version], ARRAY[place], ARRAY['k'], ARRAY[new_blob()], ARRAY[1::bigint], ARRAY['e'], ARRAY['{}'], ARRAY[place],
                                  ARRAY[token], ARRAY[seal], ARRAY[request]);
    ELSE
      PERFORM objects.commit_upload(version, place, 'k', ARRAY[new_blob()], ARRAY[1::bigint], 'e', '{}', place, token, seal, request, NULL, false);
    END IF;
    PERFORM relies(fence.key(place, token, seal), false, 'shared of a grant, by ' || kind),
            relies(hashtextextended(place, 1), false, 'shared of the rules, by ' || kind),
            relies(hashtextextended(request, hashtextextended('k', hashtextextended(place, 0))), true, 'exclusive of a request, by ' || kind)
       WHERE EXISTS (SELECT FROM objects.versions v WHERE v.id = version);   -- commit_puts leaves some to others
  WHEN 'tags' THEN
    PERFORM objects.put_tags(version, place, 'k', NULL, '{"a": "b"}', place, token, seal, request);
    PERFORM relies(hashtextextended(version::text, 0), true, 'exclusive of a change of tags');
  WHEN 'deletion' THEN
    PERFORM objects.commit_deletion(version, place, 'k', place, token, seal, request, NULL);
    PERFORM relies(hashtextextended(version::text, 0), true, 'exclusive of a deletion');
  WHEN 'deletion if' THEN
    PERFORM objects.commit_deletion_if(version, place, 'k', place, token, seal, request, NULL, NULL, NULL);
    PERFORM relies(hashtextextended(version::text, 0), true, 'exclusive of a conditional deletion');
  WHEN 'restore' THEN
    SELECT p.version INTO made FROM objects.pointers p WHERE p.bucket = 'bk' AND p.key = 'k';
    PERFORM objects.restore_version(version, place, 'k', made, place, token, seal, request, NULL, false);
    PERFORM relies(hashtextextended(version::text, 0), true, 'exclusive of a restoration');
  WHEN 'part', 'complete' THEN
    upload := objects.begin_multipart(gen_random_uuid(), place, 'm', '{}', place, token, seal, request);
    made := objects.put_part(upload, place, 'm', 1, new_blob(), 1, 'e', '', '', place, token, seal, NULL);
    PERFORM relies(hashtextextended(upload::text, 2), false, 'shared of an upload');
    IF kind = 'complete' THEN
      PERFORM objects.complete_multipart(upload, place, 'm', ARRAY[made], ARRAY[1::bigint], 'e', '{}', place, token, seal, NULL, NULL, false);
    END IF;
  WHEN 'condemn' THEN
    INSERT INTO objects.uploads (id, bucket, key, attributes, resource, token, created_at) VALUES (version, place, 'm', '{}', place, token, now() - interval '9 d');
    PERFORM objects.condemn('1 d', '1 d', 10, false, false);
  WHEN 'publish' THEN
    made := new_blob();
    INSERT INTO objects.stages (id, bucket, key, blob, blobs, blob_sizes, etag, attributes, resource, token, if_none_match)
    VALUES (version, place, 's', made, ARRAY[made], ARRAY[1], 'e', '{}', place, token, false);
    PERFORM presenting('', '', grant_of(place), format('SELECT fence.publish(%L)', version));
    PERFORM relies(fence.key(place, token, seal), false, 'shared of a grant, by publish');
  END CASE;
END $$;

-- Runs a statement with other settings.
CREATE FUNCTION presenting(p_resource text, p_token text, p_grants text, p_sql text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  before text[] := ARRAY[current_setting('fence.resource', true), current_setting('fence.token', true), current_setting('fence.grants', true)];
BEGIN
  PERFORM set_config('fence.resource', p_resource, true), set_config('fence.token', p_token, true), set_config('fence.grants', p_grants, true);
  EXECUTE p_sql;
  PERFORM set_config('fence.resource', before[1], true), set_config('fence.token', before[2], true), set_config('fence.grants', coalesce(before[3], ''), true);
END $$;

-- Does one thing that relies on locks, with the caller's rights.
CREATE FUNCTION act(kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  below bigint;
BEGIN
  CASE kind
  WHEN 'insert' THEN INSERT INTO rows (n) VALUES (1);
  WHEN 'update' THEN INSERT INTO rows (n) VALUES (2); UPDATE rows SET note = 'again' WHERE n = 2 AND id = lastval();
  WHEN 'delete' THEN INSERT INTO rows (n) VALUES (3); DELETE FROM rows WHERE id = lastval();
  WHEN 'merge' THEN MERGE INTO rows r USING (SELECT 4 AS n) s ON r.n = s.n AND r.id < 0 WHEN NOT MATCHED THEN INSERT (n) VALUES (s.n);
  WHEN 'use' THEN
    PERFORM presenting('', '', '', format('SELECT fence.use(%L, %L)', 'u/2', split_part(grant_of('u/2'), '=', 2)));
    INSERT INTO unguarded VALUES (1);
    PERFORM relies_on('u/2', 'shared of u/2, by fence.use');
  WHEN 'use own' THEN
    PERFORM fence.use(current_setting('fence.resource'), current_setting('fence.token'));
    INSERT INTO unguarded VALUES (1);
    PERFORM relies_on(current_setting('fence.resource'), 'shared of its own, by fence.use');
  WHEN 'list' THEN PERFORM presenting('', '', current_setting('fence.resource') || '=' || current_setting('fence.token') || ',' || grant_of('u/2'), 'INSERT INTO rows (n) VALUES (5)');
  WHEN 'both' THEN PERFORM presenting(current_setting('fence.resource'), current_setting('fence.token'), grant_of('u/2'), 'INSERT INTO rows (n) VALUES (6)');
  WHEN 'bare' THEN PERFORM presenting('b/1', (recorded('b/1') + 1)::text, '', 'INSERT INTO bare VALUES (1)');
  WHEN 'bare again' THEN PERFORM presenting('b/1', greatest(recorded('b/1'), 1)::text, '', 'INSERT INTO bare VALUES (2)');
  ELSE PERFORM as_gateway(kind);
  END CASE;
END $$;
CREATE FUNCTION recorded(p_resource text) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$
  SELECT coalesce((SELECT r.token FROM fence.resources r WHERE r.resource = p_resource), 0)
$$;
CREATE FUNCTION relies_on(p_resource text, p_what text) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
  SELECT relies(fence.key(r.resource, r.token, r.seal), false, p_what) FROM fence.resources r WHERE r.resource = p_resource
$$;

-- Fails in one of the ways in which a statement can fail.
CREATE FUNCTION fail(how text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF how = 'cancel' THEN
    PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(10);
  ELSIF how = 'statement_timeout' AND current_setting('statement_timeout') IN ('3ms', '200ms') THEN
    PERFORM pg_sleep(10);
  ELSIF how = 'lock_timeout' AND current_setting('lock_timeout') = '1ms' THEN
    LOCK TABLE busy IN SHARE MODE;
  END IF;
  RAISE EXCEPTION 'it fails';
END $$;

-- Acts, and fails when it is called for the row p_fail.
CREATE FUNCTION w(kind text, i int, p_fail int, how text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  PERFORM act(kind);
  IF i = p_fail THEN
    PERFORM fail(how);
  END IF;
  RETURN i;
END $$;

-- The same with the failure caught in here.
CREATE FUNCTION tries(kind text, how text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  BEGIN
    PERFORM w(kind, 1, 1, how);
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    PERFORM check_state();
    PERFORM act(kind);
  END;
  PERFORM check_state();
END $$;

-- Opens a cursor that it returns.
CREATE FUNCTION opens(name text, kind text, p_fail int, how text) RETURNS refcursor LANGUAGE plpgsql AS $$
DECLARE
  c refcursor := name;
BEGIN
  OPEN c FOR SELECT w(kind, g, p_fail, how) FROM generate_series(1, 4) g;
  RETURN c;
END $$;

-- Fetches from a cursor that the caller opened; a failure is caught in here if p_caught.
CREATE FUNCTION fetches(name text, p_caught boolean) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  c refcursor := name;
  i int;
BEGIN
  IF p_caught THEN
    BEGIN
      FETCH c INTO i;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
      PERFORM check_state();
      RETURN -1;
    END;
  ELSE
    FETCH c INTO i;
  END IF;
  RETURN i;
END $$;

-- Loops over statements that write, and catches failures between their rows.
CREATE FUNCTION loops(kind text, how text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  FOR r IN INSERT INTO rows (n) SELECT g FROM generate_series(1, 3) g RETURNING n LOOP
    BEGIN
      PERFORM w(kind, r.n, 2, how);
    EXCEPTION WHEN OTHERS OR query_canceled THEN NULL;
    END;
    PERFORM check_state();
  END LOOP;
END $$;

-- A transaction of several, in a procedure.
CREATE PROCEDURE commits(kind text, how text) LANGUAGE plpgsql AS $$
DECLARE
  c refcursor;
  i int;
BEGIN
  PERFORM act(kind);
  PERFORM check_state();
  COMMIT;
  OPEN c FOR SELECT w(kind, g, 2, how) FROM generate_series(1, 3) g;
  FETCH c INTO i;
  PERFORM check_state();
  BEGIN
    FETCH c INTO i;
  EXCEPTION WHEN OTHERS OR query_canceled THEN NULL;
  END;
  PERFORM check_state();
  COMMIT;
  FOR i IN SELECT w(kind, g, 0, '') FROM generate_series(1, 2) g LOOP
    PERFORM check_state();
    COMMIT;
  END LOOP;
  PERFORM act(kind);
  PERFORM check_state();
  ROLLBACK;
END $$;

CREATE FUNCTION dial(p_address text) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ SELECT dblink_connect('self', p_address) $$;

-- The same by a session of its own, whose transaction fetches from a cursor that fails. Returns its session's lost locks.
CREATE FUNCTION remote(p_address text, kind text, how text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  lost text;
BEGIN
  IF 'self' = ANY (dblink_get_connections()) IS NOT TRUE THEN
    PERFORM dblink_connect('self', p_address);
  END IF;
  PERFORM dblink_exec('self', 'ROLLBACK', false);   -- an error may have left it in a transaction
  PERFORM dblink_exec('self', 'BEGIN'),
          dblink_exec('self', format('DECLARE c CURSOR FOR SELECT w(%L, g, 2, %L) FROM generate_series(1, 2) g', kind, how)),
          dblink_exec('self', 'MOVE c'), dblink_exec('self', 'SAVEPOINT s'), dblink_exec('self', 'MOVE c', false), dblink_exec('self', 'ROLLBACK TO s');
  lost := (SELECT x.lost FROM dblink('self', 'SELECT lost FROM state()') x(lost text));
  PERFORM dblink_exec('self', 'COMMIT');
  IF lost <> '' THEN
    RAISE EXCEPTION 'lost: %', lost USING ERRCODE = 'PX001';
  END IF;
  RETURN lost;
END $$;

-- Acts when the transaction ends, or its constraints become immediate.
CREATE FUNCTION acts_later() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM act('insert');
  PERFORM check_state();
  RETURN NULL;
END $$;
CREATE TABLE later (n int);
CREATE CONSTRAINT TRIGGER acts_later AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION acts_later();

-- Claims to be what it is not.
CREATE FUNCTION parallel_w(n int) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN PERFORM act('insert'); RETURN n; END $$;
