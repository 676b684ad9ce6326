ALTER TABLE objects.buckets DROP COLUMN retention;
DELETE FROM objects.parts p WHERE NOT EXISTS (SELECT FROM objects.uploads u WHERE u.id = p.upload);
ALTER TABLE objects.parts ADD CONSTRAINT parts_upload_fkey FOREIGN KEY (upload) REFERENCES objects.uploads ON DELETE CASCADE;
COMMENT ON SCHEMA objects IS 'fencegate objects state 2';
