SET LOCAL search_path = pg_catalog, pg_temp;
-- Tables and roles of the schema `fence`. Its functions and views are code, beside this folder.
--
-- fence_owner      owns the schema; every check runs with its rights, so that a writer needs none on these tables
-- fence_writer     may present a grant (fence.use, fence.check); grant it to the logins that write
-- fence_gateway    may raise, drain, revoke and publish; grant it to the gateway's login
-- fence_protector  may put guards on tables that it owns, and take them off; grant it to the owners of tables
-- fence_locker     may take, extend and release leases by functions; grant it to logins that use the leases without a gateway
--
-- Roles belong to the whole cluster, and several of its databases may be migrated at the same moment. So each is made
-- where it is missing, and losing the race to another database is success.
DO $$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['fence_owner', 'fence_writer', 'fence_gateway', 'fence_protector', 'fence_locker'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
      BEGIN
        EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;
      END;
    END IF;
  END LOOP;

  -- A migrating login that is no superuser must be able to act as the owner, and to protect tables. (From PostgreSQL 16 on it
  -- may only administer the roles that it makes, until it grants them to itself.)
  FOREACH wanted IN ARRAY ARRAY['fence_owner', 'fence_protector'] LOOP
    IF NOT pg_catalog.pg_has_role(current_user, wanted,
         CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END) THEN
      EXECUTE pg_catalog.format('GRANT %I TO %I', wanted, current_user);
    END IF;
  END LOOP;

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

  -- Ending the session of a superseded holder takes knowing it: its process id and its client's port, which only this right shows.
  IF NOT pg_catalog.pg_has_role('fence_owner', 'pg_read_all_stats', 'USAGE') THEN
    BEGIN
      GRANT pg_read_all_stats TO fence_owner;
    EXCEPTION
      WHEN unique_violation THEN
        NULL;
      WHEN insufficient_privilege THEN
        RAISE WARNING 'fence_owner may not see whose a session is: a superseded statement that heeds no cancel runs on'
          USING HINT = 'As a superuser: GRANT pg_read_all_stats TO fence_owner;';
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
  ended_at  timestamptz,                             -- when the holder released its lease; NULL: it has not
  undrained bigint[] NOT NULL DEFAULT '{}'           -- fence.key of superseded grants whose writers may be in flight
) WITH (fillfactor = 50);

-- Orders the changes of each resource's row, by a row lock: any login can take any advisory lock, but nobody can touch this
-- table. Not a lock on the row in fence.resources, which would leave xmax <> 0 there and send every check down the slow path.
CREATE TABLE fence.arms (
  resource text COLLATE "C" PRIMARY KEY
);

-- What is left of fences that were retired: for each bucket of names the greatest token that one of them stood at.
CREATE TABLE fence.floors (
  bucket integer PRIMARY KEY CHECK (bucket BETWEEN 0 AND 4095),   -- see fence.bucket_of
  floor  bigint NOT NULL CHECK (floor > 0)
) WITH (fillfactor = 50);

-- The floor that holds for tokens minted elsewhere: that of the moment in which the pattern was allowed, since no fence of such
-- a name is retired from then on. Who mints them does not learn of floors that rise later, and can't go above.
--
-- The code replaces the function.
CREATE FUNCTION fence.highest_floor() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(max(f.floor), 0) FROM fence.floors f
$$;
REVOKE ALL ON FUNCTION fence.highest_floor() FROM PUBLIC;

-- Resources that accept unsealed tokens (minted elsewhere). '*' in a pattern stands for any characters.
-- Empty by default: whoever may write here decides that tokens of these resources can be invented by a writer.
CREATE TABLE fence.unsealed (
  pattern text COLLATE "C" PRIMARY KEY CHECK (pattern <> ''),
  floor   bigint NOT NULL DEFAULT fence.highest_floor()
);

-- The durable epoch, in one row: the base of the token counters of a lock node that lost its data.
-- An epoch is the upper part of tokens that stay below 2^53.
CREATE TABLE fence.epochs (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  epoch    bigint NOT NULL CHECK (epoch >= 0 AND epoch < 2097152)
);
INSERT INTO fence.epochs (epoch) VALUES (0);

-- Which group of leases this database is, in one row: Redis nodes keep the keys of several databases apart by it. A promotion, a
-- restore, a dump and pg_upgrade keep it, or locks that are held would be out of sight; see lockgroup.sql.
CREATE TABLE fence.lock_group (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  id       uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO fence.lock_group DEFAULT VALUES;

-- Where leases of this database come from, in one row. Two sources at the same time would give a resource to two holders.
CREATE TABLE fence.lease_source (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  source   text CHECK (source <> ''),   -- 'postgres', 'redis'; NULL: nobody has taken a lease yet
  identity text                         -- where it is postgres: the server that may arm, see fence.identity
);
INSERT INTO fence.lease_source DEFAULT VALUES;

-- Leases that PostgreSQL itself keeps, for those who run no other lock service: who holds a resource. See leases.sql. Apart from
-- the fence's row: a renewal that updated that one would make the holder's REPEATABLE READ transactions look stale. No index but
-- the key's, so that changes are HOT.
CREATE TABLE fence.leases (
  resource text COLLATE "C" PRIMARY KEY,
  owner    text NOT NULL,          -- names the acquisition; '': nobody
  token    bigint NOT NULL,        -- what it armed
  holder   text NOT NULL,          -- for people
  ends_at  timestamptz NOT NULL    -- by this server's clock; -infinity: it was released
) WITH (fillfactor = 50);

-- Processes that wait for a resource, in their order. Who is not heard of until `until` has no place any more. A crash may
-- empty it: who waits comes again.
CREATE UNLOGGED TABLE fence.lease_waiters (
  resource text COLLATE "C",
  waiter   text,                   -- names the process, and its channel
  place    bigint NOT NULL,
  until    timestamptz NOT NULL,
  PRIMARY KEY (resource, waiter)
);

-- What a check comes to: the recorded token, or the error to raise. The functions that a client calls raise it themselves,
-- so that a refusal's CONTEXT is one line.
CREATE TYPE fence.verdict AS (token bigint, state text, message text, detail text, hint text);

-- Numbers what is made for one call of fence.protect: refused_N here; resource_of_N, rows_N and stamp_N for rows.
CREATE SEQUENCE fence.protections AS integer;

-- What was protected, so that a guard that is dropped is missed.
CREATE TABLE fence.registry (
  relation regclass PRIMARY KEY,
  resource text,
  under    text,
  per_row  text,
  mode     text NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'report')),
  stamp    name,
  number   integer,   -- of what was made for it: fence.rows_N, ...
  CHECK (num_nonnulls(resource, under, per_row) = 1)
);
GRANT SELECT ON fence.registry TO PUBLIC;

-- The protected schemas. By name, because pg_upgrade refuses a column of type regnamespace.
CREATE TABLE fence.schema_names (
  name     text PRIMARY KEY,   -- as to_regnamespace reads it, quoted where it must be
  resource text,
  under    text,
  per_row  text,
  mode     text NOT NULL,
  stamp    name
);

-- Tables whose protection ends with this transaction. A row is there within a transaction only: at its end fence.has_left
-- looks that no guard stays behind, and deletes it.
CREATE TABLE fence.leaving (
  relation oid PRIMARY KEY
);

-- The code replaces it.
CREATE FUNCTION fence.has_left() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fence.leaving l WHERE l.relation = new.relation;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fence.has_left() FROM PUBLIC;
CREATE CONSTRAINT TRIGGER has_left AFTER INSERT ON fence.leaving DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fence.has_left();
ALTER TABLE fence.leaving ENABLE ALWAYS TRIGGER has_left;

-- One row for each time that all fences were raised. Rows are never deleted: a gateway tells a new one from those that a
-- restored backup brought back.
CREATE TABLE fence.invalidations (
  id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  identity text NOT NULL,        -- of the server that it was done on, see fence.identity
  at       timestamptz NOT NULL DEFAULT pg_catalog.now(),
  by       text NOT NULL DEFAULT session_user,
  raised   bigint NOT NULL,
  unsealed bigint NOT NULL
);

-- Counts looks of gateways that had raised fences since the one before. Unlike the WAL's position it grows for that reason only,
-- so a server that was set back is seen to be behind, however much it has written since.
CREATE TABLE fence.beats (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  beats    bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO fence.beats (beats) VALUES (0);

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it. The hash is that of the text
-- above: make code-hash.
COMMENT ON SCHEMA fence IS 'fencegate fence state 1 1a79ed4e0d65';
