-- The sweep: finds the bytes that nobody will ask for, and says so in the blob's row before anybody deletes them. Ages decide
-- only how tidy it is. What keeps a live object's bytes is the row: whoever changes it first, a commit or the sweep, wins, and
-- the other one sees that. A condemned blob's row stays for a while and its bytes are deleted again, because an upload that
-- stalled may still finish writing them.

SET ROLE fence_owner;

ALTER TABLE objects.blobs ADD COLUMN swept_at timestamptz;   -- when its bytes were last deleted
ALTER TABLE objects.blobs ADD COLUMN tried_at timestamptz;   -- when that was last tried, also in vain

-- Condemns uploads that have been pending, and blobs that have been superseded, for longer than these ages; multipart uploads
-- are forgotten after p_pending, and their parts with them. Returns how many blobs were condemned: fewer than p_limit means
-- that none is left. p_dry only counts, up to p_limit.
CREATE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
BEGIN
  PERFORM objects.begin_change();
  IF NOT p_dry THEN
    DELETE FROM objects.uploads WHERE id IN (
      SELECT u.id FROM objects.uploads u WHERE u.created_at < now() - p_pending
         AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= now() - p_pending)
       LIMIT p_limit FOR UPDATE SKIP LOCKED);
  END IF;
  SELECT coalesce(array_agg(id), '{}') INTO ids FROM (
    SELECT b.id FROM objects.blobs b
     WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending OR b.state = 'superseded' AND b.changed_at < now() - p_superseded)
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     LIMIT p_limit FOR UPDATE SKIP LOCKED) due;
  IF NOT p_dry THEN
    UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  END IF;
  RETURN cardinality(ids);
END $$;

-- Condemned blobs whose bytes were not deleted yet, or not since p_again ago, and on which this sweep, which began at p_begun,
-- did not try its hand; those that failed before come last.
CREATE FUNCTION objects.condemned(p_again interval, p_begun timestamptz, p_limit integer) RETURNS SETOF uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT id FROM objects.blobs
   WHERE state = 'condemned' AND (swept_at IS NULL OR swept_at < now() - p_again) AND (tried_at IS NULL OR tried_at < p_begun)
   ORDER BY tried_at NULLS FIRST, changed_at LIMIT p_limit
$$;

-- Notes that these condemned blobs' bytes were deleted, and forgets those that have been condemned for longer than p_forget;
-- and that others' could not be deleted.
CREATE FUNCTION objects.swept(p_deleted uuid[], p_failed uuid[], p_forget interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  DELETE FROM objects.blobs WHERE id = ANY (p_deleted) AND state = 'condemned' AND changed_at < now() - p_forget;
  UPDATE objects.blobs SET tried_at = now(), swept_at = CASE WHEN id = ANY (p_deleted) THEN now() ELSE swept_at END
   WHERE id = ANY (p_deleted || p_failed) AND state = 'condemned';
END $$;

REVOKE ALL ON FUNCTION objects.condemn, objects.condemned, objects.swept FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.condemn, objects.condemned, objects.swept TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 12';
