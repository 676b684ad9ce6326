SET LOCAL search_path = pg_catalog, pg_temp;
SET ROLE fence_owner;

-- For how long an object of the bucket can be neither overwritten nor deleted, from its writing on; NULL: not at all. See
-- code/writeonce.sql.
--
-- Each ALTER TABLE waits for the transactions that use the table, and those that come meanwhile wait behind it. So it waits for a
-- second, lets them pass, and tries again.
--
-- The parts' foreign key goes: each part that was added locked its upload's row, and two at a time made a multixact. Whoever removes
-- an upload removes its parts.
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  FOR try IN 1..10 LOOP
    BEGIN
      ALTER TABLE objects.buckets ADD COLUMN retention interval CHECK (retention > '0');
      ALTER TABLE objects.parts DROP CONSTRAINT parts_upload_fkey;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF try = 10 THEN
        RAISE EXCEPTION 'objects.buckets or objects.parts is locked by transactions that read or write objects: ten tries of a second each were in vain'
          USING ERRCODE = 'lock_not_available', HINT = 'End the longest transactions that publish files, then migrate again.';
      END IF;
    END;
  END LOOP;
END $$;
RESET ROLE;

COMMENT ON SCHEMA objects IS 'fencegate objects state 3';
