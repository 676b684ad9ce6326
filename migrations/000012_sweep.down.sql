-- Condemned blobs stay condemned; without the sweep their bytes stay too.
DROP FUNCTION objects.condemn, objects.condemned, objects.swept;
ALTER TABLE objects.blobs DROP COLUMN swept_at, DROP COLUMN tried_at;
COMMENT ON SCHEMA fence IS 'fencegate schema version 11';
