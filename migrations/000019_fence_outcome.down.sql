-- Afterwards the outcome of a COMMIT that was not answered can't be looked up.
DROP FUNCTION fence.outcome(text, text), fence.server_run();
COMMENT ON SCHEMA fence IS 'fencegate schema version 18';
