SET LOCAL search_path = pg_catalog, pg_temp;
-- When the holder of a grant released its lease; NULL: it has not. A column without a default rewrites nothing, and NULL is
-- what code of state 1 leaves there.
--
-- ALTER TABLE waits for the transactions that have checked a grant, and whoever checks meanwhile waits behind it. So it waits
-- for a second, lets them pass, and tries again.
SET ROLE fence_owner;
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  FOR try IN 1..10 LOOP
    BEGIN
      ALTER TABLE fence.resources ADD COLUMN ended_at timestamptz;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF try = 10 THEN
        RAISE EXCEPTION 'fence.resources is locked by transactions that have checked a grant: ten tries of a second each were in vain'
          USING ERRCODE = 'lock_not_available', HINT = 'End the longest transactions that write protected tables, then migrate again.';
      END IF;
    END;
  END LOOP;
END $$;
RESET ROLE;

COMMENT ON SCHEMA fence IS 'fencegate fence state 2';
