SET LOCAL search_path = pg_catalog, pg_temp;
SET ROLE fence_owner;

-- Indexes for the sweep: each statement of code/sweep.sql reads one of them in its order, and no more rows than it returns.
--
-- Transactions that write files wait while the indexes are built. All locks are taken before the first is built, the strongest
-- one first: a lock that is raised later could meet a transaction that waits for the weaker one. Each lock is waited for a second
-- at most; then the transactions pass, and all is tried again.
--
-- An upload finds its pending blob by its id. Few blobs are pending when statistics are gathered, so to PostgreSQL an index of them
-- would look as good; it is full of dead rows. changed_at > '-infinity' is true, and keeps such statements from that index.
--
-- Each overwrite leaves several dead rows of objects.blobs, at the beginning of the indexes: a fifth of the table is too many.
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  FOR try IN 1..10 LOOP
    BEGIN
      DROP INDEX objects.blobs_to_sweep;   -- locks objects.blobs as a whole
      LOCK TABLE objects.uploads, objects.taggings IN SHARE MODE;
      CREATE INDEX blobs_to_condemn ON objects.blobs (state, changed_at)
        WHERE state IN ('pending', 'superseded') AND changed_at > '-infinity';
      CREATE INDEX blobs_to_delete ON objects.blobs (tried_at NULLS FIRST, changed_at)
        WHERE state = 'condemned' AND (swept_at = tried_at) IS NOT TRUE;   -- never tried, or the last time in vain
      CREATE INDEX blobs_to_delete_again ON objects.blobs (swept_at) WHERE state = 'condemned' AND (swept_at = tried_at) IS TRUE;
      CREATE INDEX uploads_to_abort ON objects.uploads (created_at);
      CREATE INDEX taggings_to_forget ON objects.taggings (created_at);
      ALTER TABLE objects.blobs SET (autovacuum_vacuum_scale_factor = 0.02);
      EXIT;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
      IF try = 10 THEN
        RAISE EXCEPTION 'objects.blobs, objects.uploads or objects.taggings is locked by transactions that write objects: ten tries of a second each were in vain'
          USING ERRCODE = 'lock_not_available', HINT = 'End the longest transactions that publish files, then migrate again.';
      END IF;
    END;
  END LOOP;
END $$;
RESET ROLE;

COMMENT ON SCHEMA objects IS 'fencegate objects state 4';
