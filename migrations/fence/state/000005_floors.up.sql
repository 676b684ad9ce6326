SET LOCAL search_path = pg_catalog, pg_temp;
-- What is left of fences that were retired: for each bucket of names the greatest token that one of them stood at.
SET ROLE fence_owner;
CREATE TABLE fence.floors (
  bucket integer PRIMARY KEY CHECK (bucket BETWEEN 0 AND 4095),   -- see fence.bucket_of
  floor  bigint NOT NULL CHECK (floor > 0)
) WITH (fillfactor = 50);

-- The floor that holds for tokens minted elsewhere: that of the moment in which the pattern was allowed, since no fence of such
-- a name is retired from then on. Who mints them does not learn of floors that rise later, and can't go above.
--
-- Replaced by the code, which may come later than this step.
CREATE OR REPLACE FUNCTION fence.highest_floor() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(max(f.floor), 0) FROM fence.floors f
$$;
REVOKE ALL ON FUNCTION fence.highest_floor() FROM PUBLIC;

-- As in step 2: writers of unsealed tokens read this table.
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  FOR try IN 1..10 LOOP
    BEGIN
      ALTER TABLE fence.unsealed ADD COLUMN floor bigint NOT NULL DEFAULT 0, ALTER COLUMN floor SET DEFAULT fence.highest_floor();
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF try = 10 THEN
        RAISE EXCEPTION 'fence.unsealed is locked by transactions that have checked an unsealed token: ten tries of a second each were in vain'
          USING ERRCODE = 'lock_not_available', HINT = 'End the longest transactions that write protected tables, then migrate again.';
      END IF;
    END;
  END LOOP;
END $$;
RESET ROLE;

COMMENT ON SCHEMA fence IS 'fencegate fence state 5';
