SET ROLE fence_owner;
DROP FUNCTION objects.set_bucket_document;
DROP TABLE objects.bucket_documents;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 40';
