SET LOCAL search_path = pg_catalog, pg_temp;
-- The longest TTL that a lock node may have granted, beside the epoch; see longest.sql. Locked in short turns, as in step 2.
SET ROLE fence_owner;
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  FOR try IN 1..10 LOOP
    BEGIN
      ALTER TABLE fence.epochs
        ADD COLUMN longest bigint CHECK (longest > 0),   -- ms; NULL: nothing is known
        ADD COLUMN record  bigint NOT NULL DEFAULT 0,    -- rises where it begins anew
        ADD COLUMN history text,                         -- the server, timeline and database that it counts for
        ADD COLUMN kept    text[] NOT NULL DEFAULT '{}'; -- the groups of nodes that were all admitted under this record
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF try = 10 THEN
        RAISE EXCEPTION 'fence.epochs is locked by other transactions: ten tries of a second each were in vain'
          USING ERRCODE = 'lock_not_available', HINT = 'End the longest transactions that read fence.epochs, then migrate again.';
      END IF;
    END;
  END LOOP;
END $$;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate fence state 8';
