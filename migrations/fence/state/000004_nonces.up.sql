SET LOCAL search_path = pg_catalog, pg_temp;
-- The nonces that have held a resource, so that one that was superseded is never armed again: whoever carries it may hold what it
-- read before. A row is kept as long as a process with this nonce may live; see fence.forget_nonces.
SET ROLE fence_owner;
CREATE TABLE fence.nonces (
  resource text COLLATE "C",
  nonce    bytea CHECK (octet_length(nonce) = 32),   -- SHA-256 of the nonce
  token    bigint NOT NULL,                          -- the last one that it armed
  seal     bytea,                                    -- and its seal, as in fence.resources
  armed_at timestamptz NOT NULL,
  PRIMARY KEY (resource, nonce)
);
RESET ROLE;

-- Ending the session of a superseded holder takes knowing it: its process id and its client's port, which only this right shows.
DO $$
BEGIN
  IF NOT pg_catalog.pg_has_role('fence_owner', 'pg_read_all_stats', 'USAGE') THEN
    BEGIN
      GRANT pg_read_all_stats TO fence_owner;
    EXCEPTION
      WHEN unique_violation THEN
        NULL;
      WHEN insufficient_privilege THEN
        RAISE WARNING 'fence_owner may not see whose a session is: a superseded statement that heeds no cancel runs on'
          USING HINT = 'As a superuser: GRANT pg_read_all_stats TO fence_owner;';
    END;
  END IF;
END $$;
COMMENT ON SCHEMA fence IS 'fencegate fence state 4';
