SET LOCAL search_path = pg_catalog, pg_temp;
-- Leases that PostgreSQL itself keeps, for those who run no other lock service; see leases.sql.
--
-- fence_locker   may take, extend and release leases by functions; grant it to logins that use the leases without a gateway
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'fence_locker') THEN
    BEGIN
      CREATE ROLE fence_locker NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;   -- another database of the cluster was faster
    END;
  END IF;
END $$;
SET ROLE fence_owner;

-- Who holds a resource. Apart from the fence's row: a renewal that updated that one would make the holder's REPEATABLE READ
-- transactions look stale. No index but the key's, so that changes are HOT.
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

-- Where leases of this database come from, in one row. Two sources at the same time would give a resource to two holders.
CREATE TABLE fence.lease_source (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  source   text CHECK (source <> ''),   -- 'postgres', 'redis'; NULL: nobody has taken a lease yet
  identity text                         -- where it is postgres: the server that may arm, see fence.identity
);
INSERT INTO fence.lease_source DEFAULT VALUES;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate fence state 6';
