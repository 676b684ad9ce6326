-- Uploads are published at once again; those that are staged are left to the sweep.
SET ROLE fence_owner;
DROP FUNCTION fence.publish, fence.publish_all, fence.unpublish, fence.staged;
DROP FUNCTION objects.publish, objects.publish_one, objects.lock_current, objects.authorize_stage, objects.verify_presented, objects.stage_multipart, objects.stage_upload;
DROP TABLE objects.stages;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 32';
