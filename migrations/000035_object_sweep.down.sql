SET ROLE fence_owner;
DROP FUNCTION objects.owner_mark, objects.adopt, objects.prune_versions;
DROP TABLE objects.installation;

CREATE FUNCTION objects.prune_versions(p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
  gone uuid;
  n integer := 0;
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets ORDER BY name FOR SHARE;   -- as long as this goes on, nobody decides to keep more
  SELECT coalesce(array_agg(due.id), '{}') INTO ids FROM (
    SELECT k.id FROM (
      SELECT v.id, v.deletion, v.kept_at, b.keep_count, b.keep_age,
             count(*) FILTER (WHERE NOT v.deletion) OVER (PARTITION BY v.bucket, v.key ORDER BY v.kept_order DESC) AS nth,
             count(*) FILTER (WHERE NOT v.deletion) OVER (PARTITION BY v.bucket, v.key ORDER BY v.kept_order) AS hidden
        FROM objects.versions v JOIN objects.buckets b ON b.name = v.bucket
       WHERE v.kept_order IS NOT NULL AND (b.keep_count IS NOT NULL OR b.keep_age IS NOT NULL)) k
     WHERE CASE WHEN k.deletion THEN k.hidden = 0 AND (k.keep_count IS NOT NULL OR k.kept_at < now() - k.keep_age)
                ELSE k.nth > k.keep_count OR k.kept_at < now() - k.keep_age END
     LIMIT p_limit) due;
  IF p_dry THEN
    RETURN cardinality(ids);
  END IF;
  FOR gone IN SELECT v.id FROM objects.versions v WHERE v.id = ANY (ids) AND v.kept_order IS NOT NULL ORDER BY v.id FOR UPDATE SKIP LOCKED LOOP
    UPDATE objects.versions v SET kept_order = NULL, kept_at = NULL WHERE v.id = gone;
    PERFORM objects.supersede(gone);
    n := n + 1;
  END LOOP;
  RETURN n;
END $$;

CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
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
     WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending
            OR b.state = 'superseded' AND b.changed_at < now() - p_superseded AND NOT objects.is_named(b.version))
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     LIMIT p_limit FOR UPDATE SKIP LOCKED) due;
  IF NOT p_dry THEN
    UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  END IF;
  RETURN cardinality(ids);
END $$;

REVOKE ALL ON FUNCTION objects.prune_versions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.prune_versions TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 33';
