-- Forgets which grants have ended: they are current again until the next acquisition. The view reads the column; the code of
-- state 1 makes it anew.
DROP VIEW IF EXISTS fence.fences;
ALTER TABLE fence.resources DROP COLUMN ended_at;
COMMENT ON SCHEMA fence IS 'fencegate fence state 1';
