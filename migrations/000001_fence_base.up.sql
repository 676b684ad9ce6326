-- Roles, the schema `fence`, and its tables.
--
-- fence_owner    owns the schema; every check runs with its rights, so that a writer needs none on these tables
-- fence_writer   may present a grant (fence.use, fence.check); grant it to the logins that write
-- fence_gateway  may raise, drain, revoke and publish; grant it to the gateway's login
--
-- Roles belong to the whole cluster, and several of its databases may be migrated at the same moment. So each is made
-- where it is missing, and losing the race to another database is success.
DO $$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['fence_owner', 'fence_writer', 'fence_gateway'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
      BEGIN
        EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;
      END;
    END IF;
  END LOOP;

  -- A migrating login that is no superuser must be able to act as the owner. (From PostgreSQL 16 on it may only
  -- administer the roles that it makes, until it grants them to itself.)
  IF NOT pg_catalog.pg_has_role(current_user, 'fence_owner',
       CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END) THEN
    EXECUTE pg_catalog.format('GRANT fence_owner TO %I', current_user);
  END IF;

  -- Draining ends the transactions of superseded writers, which are other logins' sessions.
  IF NOT pg_catalog.pg_has_role('fence_owner', 'pg_signal_backend', 'USAGE') THEN
    BEGIN
      GRANT pg_signal_backend TO fence_owner;
    EXCEPTION
      WHEN unique_violation THEN
        NULL;
      WHEN insufficient_privilege THEN
        RAISE WARNING 'fence_owner may not end stale transactions: arming fails with ZF005 while one is in flight'
          USING HINT = 'As a superuser: GRANT pg_signal_backend TO fence_owner;';
    END;
  END IF;
END $$;

CREATE SCHEMA fence AUTHORIZATION fence_owner;
SET ROLE fence_owner;

-- Everybody may name what is in the schema; each function and table is granted by itself. A guarded write needs no
-- right here at all.
GRANT USAGE ON SCHEMA fence TO PUBLIC;

-- One row for each resource: the fence. Rows are never deleted: a fence that forgets lets stale writers in.
-- fillfactor and the absence of an index on token keep raising a HOT update.
CREATE TABLE fence.resources (
  resource  text COLLATE "C" PRIMARY KEY,
  token     bigint NOT NULL CHECK (token > 0),
  seal      bytea CHECK (octet_length(seal) = 32),   -- SHA-256 of the seal's text; NULL: unsealed
  holder    text NOT NULL,                           -- for people: who holds the lease
  armed_at  timestamptz NOT NULL,
  undrained bigint[] NOT NULL DEFAULT '{}'           -- fence.key of superseded grants whose writers may be in flight
) WITH (fillfactor = 50);

-- Orders the changes of each resource's row, by a row lock: any login can take any advisory lock, but nobody can touch this
-- table. Not a lock on the row in fence.resources, which would leave xmax <> 0 there and send every check down the slow path.
CREATE TABLE fence.arms (
  resource text COLLATE "C" PRIMARY KEY
);

-- Resources that accept unsealed tokens (minted elsewhere). '*' in a pattern stands for any characters.
-- Empty by default: whoever may write here decides that tokens of these resources can be invented by a writer.
CREATE TABLE fence.unsealed (
  pattern text COLLATE "C" PRIMARY KEY CHECK (pattern <> '')
);

-- The durable epoch, in one row: the base of the token counters of a lock node that lost its data.
-- An epoch is the upper part of tokens that stay below 2^53.
CREATE TABLE fence.epochs (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  epoch    bigint NOT NULL CHECK (epoch >= 0 AND epoch < 2097152)
);
INSERT INTO fence.epochs (epoch) VALUES (0);

-- What people and the gateway may see of the fences: no seal.
CREATE VIEW fence.fences AS
  SELECT resource, token, seal IS NOT NULL AS sealed, holder, armed_at, cardinality(undrained) AS undrained
    FROM fence.resources;
GRANT SELECT ON fence.fences TO fence_gateway;

-- The advisory lock of one grant: shared by the writers that passed the check under it, exclusive for whoever drains
-- them. It is per seal hash, because a writer may know its seal before its token. Unsealed: per token.
CREATE FUNCTION fence.key(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT pg_catalog.hashtextextended(
    coalesce(pg_catalog.encode(p_seal_hash, 'hex'), p_token::pg_catalog.text),
    pg_catalog.hashtextextended(p_resource, 0))
$$;
REVOKE ALL ON FUNCTION fence.key(text, bigint, bytea) FROM PUBLIC;

-- How long a writer waits for others, in milliseconds, before it fails with ZF005.
CREATE FUNCTION fence.patience() RETURNS numeric LANGUAGE sql IMMUTABLE AS $$ SELECT 5000.0 $$;
REVOKE ALL ON FUNCTION fence.patience() FROM PUBLIC;

-- Takes an advisory lock to the end of the transaction, or gives up after p_patience milliseconds. Any login can take any
-- advisory lock, so nothing waits for one without end.
CREATE FUNCTION fence.lock_within(p_key bigint, p_exclusive boolean, p_patience numeric) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
BEGIN
  PERFORM set_config('lock_timeout', greatest(1, ceil(p_patience))::text, true);
  IF p_exclusive THEN
    PERFORM pg_advisory_xact_lock(p_key);
  ELSE
    PERFORM pg_advisory_xact_lock_shared(p_key);
  END IF;
  PERFORM set_config('lock_timeout', before, true);
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.lock_within(bigint, boolean, numeric) FROM PUBLIC;

-- The slow path of ordering: the resource has no row in fence.arms yet, or somebody holds it. false: still, after
-- p_patience milliseconds.
CREATE FUNCTION fence.take_turn(p_resource text, p_patience numeric) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
BEGIN
  PERFORM set_config('lock_timeout', greatest(1, ceil(p_patience))::text, true);
  INSERT INTO fence.arms (resource) VALUES (p_resource) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE;
  END IF;
  PERFORM set_config('lock_timeout', before, true);
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.take_turn(text, numeric) FROM PUBLIC;

-- Who else holds the advisory lock of a grant. writer: shared, as whoever passed the check under it. A prepared transaction
-- has a gid and no pid; it is found by the lock on its own xid (its virtual xid is that of the session that prepared it, or
-- after a restart -1/xid).
CREATE FUNCTION fence.holders(p_key bigint) RETURNS TABLE (pid int, gid text, writer boolean) LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT l.pid, (SELECT p.gid FROM pg_locks x JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
                  WHERE l.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
                    AND x.locktype = 'transactionid' LIMIT 1), l.mode = 'ShareLock'
    FROM pg_locks l
   WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
     AND l.classid = ((p_key >> 32) & 4294967295)::oid AND l.objid = (p_key & 4294967295)::oid
     AND l.pid IS DISTINCT FROM pg_backend_pid()
$$;
REVOKE ALL ON FUNCTION fence.holders(bigint) FROM PUBLIC;

-- Names the holders of one grant's lock for people.
CREATE FUNCTION fence.holders_named(p_key bigint) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(string_agg(CASE WHEN pid IS NULL THEN format('prepared transaction %L', gid) ELSE format('process %s', pid) END, ', '),
                  'a transaction that has just ended') FROM fence.holders(p_key)
$$;
REVOKE ALL ON FUNCTION fence.holders_named(bigint) FROM PUBLIC;

-- Names who holds a resource's row in fence.arms: whose transaction is its xmax, or, while the row itself is not committed,
-- who has inserted one.
CREATE FUNCTION fence.arming_named(p_resource text) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN format('prepared transaction %L', p.gid) ELSE format('process %s', l.pid) END, ', '),
                  'a transaction that has just ended')
    FROM pg_locks l LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
   WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
     AND (l.transactionid = (SELECT a.xmax FROM fence.arms a WHERE a.resource = p_resource)
          OR l.relation = 'fence.arms'::regclass AND l.mode = 'RowExclusiveLock'
             AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
             AND NOT EXISTS (SELECT FROM fence.arms a WHERE a.resource = p_resource))
$$;
REVOKE ALL ON FUNCTION fence.arming_named(text) FROM PUBLIC;

-- Why a name can't name a resource, or NULL where it can. The same rules and words as the Go package fence.
CREATE FUNCTION fence.resource_fault(p_resource text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN coalesce(p_resource, '') = '' THEN 'is empty'
    WHEN pg_catalog.octet_length(p_resource) > 512
      THEN pg_catalog.format('is %s bytes long; at most 512 are allowed', pg_catalog.octet_length(p_resource))
    WHEN p_resource COLLATE "C" ~ concat('[', chr(1), '-', chr(31), chr(127), '-', chr(159), ']') THEN 'contains a control character'
    WHEN pg_catalog.strpos(p_resource, '*') > 0 THEN 'contains ''*'', which is kept for patterns'
  END
$$;


RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate schema version 1';
