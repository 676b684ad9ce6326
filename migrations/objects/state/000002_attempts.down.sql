DROP TABLE objects.attempts, objects.retired;
ALTER TABLE objects.versions DROP COLUMN removed_under;
COMMENT ON SCHEMA objects IS 'fencegate objects state 1';
