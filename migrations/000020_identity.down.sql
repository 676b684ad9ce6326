DROP PROCEDURE fence.wait_for(pg_lsn, interval);
DROP FUNCTION fence.position();
DROP FUNCTION fence.drain_invalidated(interval, interval);
DROP FUNCTION fence.invalidate_all(boolean, interval);
DROP FUNCTION fence.identity();
DROP FUNCTION fence.beat();
DROP TABLE fence.beats, fence.invalidations;
COMMENT ON SCHEMA fence IS 'fencegate schema version 19';
