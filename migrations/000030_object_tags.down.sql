-- The tags stay among the versions' attributes; which token changed them is forgotten.
DROP FUNCTION objects.put_tags, objects.list_uploads;
DROP TABLE objects.taggings;
COMMENT ON SCHEMA fence IS 'fencegate schema version 25';
