-- Forgets the floors: without them a stale token of a retired fence could be issued and accepted again. The runner refuses this
-- where there are any, unless it is forced.
ALTER TABLE fence.unsealed DROP COLUMN floor;
DROP FUNCTION IF EXISTS fence.highest_floor();
DROP VIEW IF EXISTS fence.retired;
DROP TABLE fence.floors;
COMMENT ON SCHEMA fence IS 'fencegate fence state 4';
