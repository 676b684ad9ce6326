-- Forgets the uploads under way. Their blobs stay pending, so the sweep finds them.
DROP FUNCTION objects.begin_multipart, objects.put_part, objects.complete_multipart, objects.completed_multipart, objects.abort_multipart, objects.drop_multipart;
DROP TABLE objects.parts, objects.uploads;
COMMENT ON SCHEMA fence IS 'fencegate schema version 10';
