SET LOCAL search_path = pg_catalog, pg_temp;
-- The longest TTL that a lock node may have granted, beside the epoch; see longest.sql.
SET ROLE fence_owner;
ALTER TABLE fence.epochs
  ADD COLUMN longest bigint CHECK (longest > 0),   -- ms; NULL: nothing is known
  ADD COLUMN record  bigint NOT NULL DEFAULT 0,    -- rises where it begins anew
  ADD COLUMN history text,                         -- the server, timeline and database that it counts for
  ADD COLUMN kept    text[] NOT NULL DEFAULT '{}'; -- the groups of nodes that were all admitted under this record
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate fence state 8';
