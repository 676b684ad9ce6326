SET LOCAL search_path = pg_catalog, pg_temp;
-- Tables and roles of the schema `fence`. Its functions and views are code, beside this folder.
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

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate fence state 1';
