SET ROLE fence_owner;
DROP FUNCTION objects.commit_put, objects.return_blobs, objects.reserve_blobs;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 39';
