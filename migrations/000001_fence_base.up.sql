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

-- The advisory lock under which a resource's row is changed: changes go one by one.
CREATE FUNCTION fence.arm_key(p_resource text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT pg_catalog.hashtextextended('arm', pg_catalog.hashtextextended(p_resource, 0))
$$;
REVOKE ALL ON FUNCTION fence.arm_key(text) FROM PUBLIC;

-- Why a name can't name a resource, or NULL where it can. The same rules and words as the Go package fence.
CREATE FUNCTION fence.resource_fault(p_resource text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN coalesce(p_resource, '') = '' THEN 'is empty'
    WHEN pg_catalog.octet_length(p_resource) > 512
      THEN pg_catalog.format('is %s bytes long; at most 512 are allowed', pg_catalog.octet_length(p_resource))
    WHEN p_resource COLLATE "C" ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'contains a control character'
    WHEN pg_catalog.strpos(p_resource, '*') > 0 THEN 'contains ''*'', which is kept for patterns'
  END
$$;


RESET ROLE;
