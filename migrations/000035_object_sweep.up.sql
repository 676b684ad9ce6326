-- The sweep goes in small steps, and knows whose blobs it sweeps.

SET ROLE fence_owner;

-- Which installation this is, for the mark that is kept beside its blobs: two databases must not sweep one store, for each would
-- take the other's blobs for leftovers. The row is copied with the database, so the mark names the server and the database, too.
CREATE TABLE objects.installation (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  id       uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid()
);
INSERT INTO objects.installation DEFAULT VALUES;

-- The mark. A promoted standby has the same; a restored dump, a copy by CREATE DATABASE, and pg_upgrade make another one.
CREATE FUNCTION objects.owner_mark() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('installation %s database %s/%s', o.id, split_part((SELECT i.identity FROM fence.identity() i), '/', 1), d.oid)
    FROM objects.installation o, pg_database d WHERE d.datname = current_database()
$$;

-- Takes note of blobs that the store holds and that have no row: those of a database that was restored to an earlier state, or
-- bytes that came after their row was forgotten. They are superseded from now on, so that they go through the same graces as
-- all others. An upload's row is committed before its first byte is sent, so what is under way is never among them. `named`:
-- blobs without a row that a current or kept version lists; they are left alone, and somebody should look into it.
CREATE FUNCTION objects.adopt(p_blobs uuid[], p_dry boolean, OUT adopted integer, OUT named integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  unknown uuid[];
  listed uuid[];
BEGIN
  PERFORM objects.begin_change();
  adopted := 0;
  named := 0;
  unknown := ARRAY(SELECT x.id FROM unnest(p_blobs) x (id) WHERE NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = x.id));
  IF unknown = '{}' THEN
    RETURN;
  END IF;
  listed := ARRAY(SELECT DISTINCT x.id FROM objects.versions v, unnest(v.blobs) x (id)
                   WHERE v.blobs && unknown AND x.id = ANY (unknown) AND objects.is_named(coalesce(v.origin, v.id)));
  named := cardinality(listed);
  adopted := cardinality(unknown) - named;
  IF NOT p_dry THEN
    INSERT INTO objects.blobs (id, state) SELECT x.id, 'superseded' FROM unnest(unknown) x (id) WHERE x.id <> ALL (listed)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS adopted = ROW_COUNT;
  END IF;
END $$;

-- Lets go of kept versions that their bucket keeps no longer, of at most p_limit keys of one bucket, the next ones after
-- (p_bucket, p_key); returns the last key that was looked at, NULL after the last. Their blobs are superseded, unless another
-- version names them, which gives them the sweep's grace. A deletion counts for nothing and goes when it hides no kept version.
-- Each call is a short transaction: as long as it goes on, nobody can decide that this bucket keeps more.
DROP FUNCTION objects.prune_versions;
CREATE FUNCTION objects.prune_versions(p_bucket text, p_key text, p_limit integer, p_dry boolean, OUT pruned integer, OUT bucket text, OUT key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  b objects.buckets;
  keys text[];
  ids uuid[];
  gone uuid;
  lo text COLLATE "C" := coalesce(p_key, '');
BEGIN
  PERFORM objects.begin_change();
  pruned := 0;
  SELECT * INTO b FROM objects.buckets x
   WHERE x.name >= p_bucket AND (x.name > p_bucket OR p_key IS NOT NULL) AND (x.keep_count IS NOT NULL OR x.keep_age IS NOT NULL)
   ORDER BY x.name LIMIT 1 FOR SHARE;
  IF b.name IS NULL THEN
    RETURN;
  END IF;
  bucket := b.name;
  IF b.name <> p_bucket THEN
    lo := '';
  END IF;
  keys := ARRAY(SELECT DISTINCT v.key FROM objects.versions v
                 WHERE v.bucket = b.name AND v.key > lo AND v.kept_order IS NOT NULL ORDER BY v.key LIMIT p_limit);
  key := keys[p_limit];   -- NULL: these were the bucket's last
  ids := ARRAY(
    SELECT k.id FROM (
      SELECT v.id, v.deletion, v.kept_at,
             count(*) FILTER (WHERE NOT v.deletion) OVER (PARTITION BY v.key ORDER BY v.kept_order DESC) AS nth,
             count(*) FILTER (WHERE NOT v.deletion) OVER (PARTITION BY v.key ORDER BY v.kept_order) AS hidden
        FROM objects.versions v WHERE v.bucket = b.name AND v.key = ANY (keys) AND v.kept_order IS NOT NULL) k
     WHERE CASE WHEN k.deletion THEN k.hidden = 0 AND (b.keep_count IS NOT NULL OR k.kept_at < now() - b.keep_age)
                ELSE k.nth > b.keep_count OR k.kept_at < now() - b.keep_age END);
  IF p_dry THEN
    pruned := cardinality(ids);
    RETURN;
  END IF;
  FOR gone IN SELECT v.id FROM objects.versions v WHERE v.id = ANY (ids) AND v.kept_order IS NOT NULL ORDER BY v.id FOR UPDATE SKIP LOCKED LOOP
    UPDATE objects.versions v SET kept_order = NULL, kept_at = NULL WHERE v.id = gone;
    PERFORM objects.supersede(gone);
    pruned := pruned + 1;
  END LOOP;
END $$;

-- As before; without doing it, it counts also the parts of the uploads that would be forgotten, and locks nothing.
CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids uuid[];
BEGIN
  PERFORM objects.begin_change();
  IF p_dry THEN
    RETURN (SELECT count(*) FROM (
      SELECT FROM objects.blobs b
       WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending
              OR b.state = 'superseded' AND b.changed_at < now() - p_superseded AND NOT objects.is_named(b.version))
         AND NOT EXISTS (
           SELECT FROM objects.parts mine JOIN objects.uploads u ON u.id = mine.upload
            WHERE mine.blob = b.id AND (u.created_at >= now() - p_pending
              OR EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= now() - p_pending)))
       LIMIT p_limit) due);
  END IF;
  DELETE FROM objects.uploads WHERE id IN (
    SELECT u.id FROM objects.uploads u WHERE u.created_at < now() - p_pending
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= now() - p_pending)
     LIMIT p_limit FOR UPDATE SKIP LOCKED);
  SELECT coalesce(array_agg(id), '{}') INTO ids FROM (
    SELECT b.id FROM objects.blobs b
     WHERE (b.state = 'pending' AND b.changed_at < now() - p_pending
            OR b.state = 'superseded' AND b.changed_at < now() - p_superseded AND NOT objects.is_named(b.version))
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     LIMIT p_limit FOR UPDATE SKIP LOCKED) due;
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  RETURN cardinality(ids);
END $$;

REVOKE ALL ON FUNCTION objects.owner_mark, objects.adopt, objects.prune_versions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.owner_mark, objects.adopt, objects.prune_versions TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 35';
