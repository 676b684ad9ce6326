-- Forgets the longest TTL in use: a quarantine lasts the longest one that is allowed again.
ALTER TABLE fence.epochs DROP COLUMN longest, DROP COLUMN record, DROP COLUMN history, DROP COLUMN kept;
COMMENT ON SCHEMA fence IS 'fencegate fence state 7';
