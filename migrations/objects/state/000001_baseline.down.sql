-- Forgets every bucket, object and version. The blobs' bytes stay in the blob store.
DROP SCHEMA objects CASCADE;
