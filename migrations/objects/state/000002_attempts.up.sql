SET LOCAL search_path = pg_catalog, pg_temp;
SET ROLE fence_owner;

-- Requests that were carried out and leave no row of their own: removals of versions, multipart uploads that were begun or aborted,
-- their parts. A request that is repeated finds its answer here; see code/attempts.sql.
CREATE TABLE objects.attempts (
  bucket        text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  invocation_id text NOT NULL,
  what          text NOT NULL,               -- a request may remove several versions of a key
  answer        jsonb NOT NULL,
  created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (bucket, key, invocation_id, what)
);
CREATE INDEX attempts_to_forget ON objects.attempts (created_at);

-- Versions whose bytes are gone, and since when; those that share their blobs have the same origin, which is what is listed. The
-- sweep forgets them later; see code/sweep.sql. Those of before this step are listed as if their bytes had just gone.
CREATE TABLE objects.retired (
  version uuid PRIMARY KEY,
  since   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX retired_in_order ON objects.retired (since);
INSERT INTO objects.retired (version)
SELECT DISTINCT coalesce(v.origin, v.id) FROM objects.versions v
 WHERE v.kept_order IS NULL AND NOT v.deletion AND NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = ANY (v.blobs))
   AND NOT EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id);

-- The resource of the grant that removed a version, beside removed_with.
--
-- ALTER TABLE waits for the transactions that write and read objects, and those that come meanwhile wait behind it. So it waits
-- for a second, lets them pass, and tries again.
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  FOR try IN 1..10 LOOP
    BEGIN
      ALTER TABLE objects.versions ADD COLUMN removed_under text;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF try = 10 THEN
        RAISE EXCEPTION 'objects.versions is locked by transactions that read or write objects: ten tries of a second each were in vain'
          USING ERRCODE = 'lock_not_available', HINT = 'End the longest transactions that publish files, then migrate again.';
      END IF;
    END;
  END LOOP;
END $$;
RESET ROLE;

COMMENT ON SCHEMA objects IS 'fencegate objects state 2';
