ALTER TABLE objects.installation DROP COLUMN grace;
COMMENT ON SCHEMA objects IS 'fencegate objects state 4';
