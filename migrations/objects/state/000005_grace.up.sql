SET LOCAL search_path = pg_catalog, pg_temp;
SET ROLE fence_owner;

-- The grace of the sweep, see objects.grace_for in code/sweep.sql. Sweeps read the row: the ALTER TABLE waits a second for them,
-- lets them pass, and tries again.
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  FOR try IN 1..10 LOOP
    BEGIN
      ALTER TABLE objects.installation ADD COLUMN grace interval CHECK (grace >= '0');   -- NULL: no sweep has declared one
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF try = 10 THEN
        RAISE EXCEPTION 'objects.installation is locked: ten tries of a second each were in vain'
          USING ERRCODE = 'lock_not_available', HINT = 'End the transactions that lock it, then migrate again.';
      END IF;
    END;
  END LOOP;
END $$;
RESET ROLE;

COMMENT ON SCHEMA objects IS 'fencegate objects state 5';
