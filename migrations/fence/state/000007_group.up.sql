SET LOCAL search_path = pg_catalog, pg_temp;
-- Which group of leases this database is, in one row: Redis nodes keep the keys of several databases apart by it. A promotion, a
-- restore, a dump and pg_upgrade keep it, or locks that are held would be out of sight; see lockgroup.sql.
SET ROLE fence_owner;
CREATE TABLE fence.lock_group (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  id       uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO fence.lock_group DEFAULT VALUES;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate fence state 7';
