ALTER TABLE objects.blobs RESET (autovacuum_vacuum_scale_factor);
CREATE INDEX blobs_to_sweep ON objects.blobs (changed_at) WHERE state <> 'live';
DROP INDEX objects.blobs_to_condemn, objects.blobs_to_delete, objects.blobs_to_delete_again, objects.uploads_to_abort, objects.taggings_to_forget;
COMMENT ON SCHEMA objects IS 'fencegate objects state 3';
