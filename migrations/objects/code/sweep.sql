-- The sweep: finds the bytes that no client will ask for, and records that in the blob's row before any gateway deletes them.
-- Ages decide only how tidy it is. The row protects a live object's bytes: the first to change it, a commit or the sweep, wins,
-- and the other one sees that. A condemned blob's row stays for a while and its bytes are deleted again, because an upload that
-- stalled may still finish writing them.
--
-- It works in small steps, and knows the owner of the blobs that it sweeps (objects.owner_mark).

-- Returns the time from which ages count in this history. After a promotion or a restore, rows are as old as what was restored,
-- and the operator may find that it was not enough, and restore something newer: then what is pending or superseded now is live.
-- So in a new history every age restarts at 0 with the first sweep that sees it.
CREATE OR REPLACE FUNCTION objects.ages_since(p_dry boolean) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  here text := (SELECT i.identity FROM fence.identity() i);
  o objects.installation;
BEGIN
  SELECT * INTO o FROM objects.installation;
  IF o.history = here THEN
    RETURN o.since;
  END IF;
  IF NOT p_dry THEN
    UPDATE objects.installation i SET history = here, since = now() WHERE i.history IS DISTINCT FROM here;
  END IF;
  RETURN now();
END $$;
REVOKE ALL ON FUNCTION objects.ages_since(boolean) FROM PUBLIC, fence_writer, fence_gateway;

-- Returns the grace of superseded versions: the longest one that a gateway or a sweep has declared, or that an operator has
-- shortened it to. NULL: none has declared one.
CREATE OR REPLACE FUNCTION objects.sweep_grace() RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT i.grace FROM objects.installation i $$;
REVOKE ALL ON FUNCTION objects.sweep_grace() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.sweep_grace() TO fence_gateway;

-- Declares a grace, and returns the grace to sweep with: the longest one that was declared. A gateway calls it when it starts,
-- each sweep by objects.condemn. Gateways and operators may have different settings, and a backup relies on the longest one; nobody's shorter setting takes bytes from it.
-- p_shorten: an operator says that p_given holds from now on, whatever was declared. p_dry records nothing.
CREATE OR REPLACE FUNCTION objects.grace_for(p_given interval, p_shorten boolean, p_dry boolean) RETURNS interval
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT p_dry THEN
    UPDATE objects.installation i SET grace = p_given
     WHERE i.grace IS DISTINCT FROM p_given AND (p_shorten OR i.grace IS NULL OR i.grace < p_given);
  END IF;
  IF p_shorten THEN
    RETURN p_given;
  END IF;
  RETURN greatest(p_given, (SELECT i.grace FROM objects.installation i));   -- another gateway may have recorded a longer one
END $$;
REVOKE ALL ON FUNCTION objects.grace_for(interval, boolean, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.grace_for(interval, boolean, boolean) TO fence_gateway;

-- Condemns uploads that have been pending, and blobs that have been superseded, for longer than these ages, but no blob that a
-- version lists, whatever its state says. p_superseded is at least the grace that was declared, unless p_shorten: see
-- objects.grace_for. Multipart uploads are deleted after p_pending, and their parts with them. Returns how many blobs were
-- condemned: fewer than p_limit means that none is left. p_dry only counts, up to p_limit, including the parts of the uploads that
-- would be deleted, and locks nothing. Ages count from objects.ages_since.
--
-- Each statement reads one index from its oldest row on, whatever the statistics say, and stops at its limit: younger rows, of
-- which a day of overwrites leaves millions, cost nothing. changed_at > '-infinity' is the index's condition.
CREATE OR REPLACE FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean, p_shorten boolean)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off AS $$
DECLARE
  ids uuid[];
  pending timestamptz := now() - p_pending;         -- what has not changed since is condemned
  superseded timestamptz;
  since timestamptz;
BEGIN
  PERFORM objects.begin_change();
  superseded := now() - objects.grace_for(p_superseded, p_shorten, p_dry);
  since := objects.ages_since(p_dry);
  IF since >= pending THEN
    pending := '-infinity';
  END IF;
  IF since >= superseded THEN
    superseded := '-infinity';
  END IF;
  IF p_dry THEN
    RETURN (SELECT count(*) FROM (
      (SELECT FROM objects.blobs b
        WHERE b.state = 'pending' AND b.changed_at > '-infinity' AND b.changed_at < pending
          AND NOT EXISTS (
            SELECT FROM objects.parts mine JOIN objects.uploads u ON u.id = mine.upload
             WHERE mine.blob = b.id AND (u.created_at >= pending
               OR EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= pending)))
        LIMIT p_limit) UNION ALL
      (SELECT FROM objects.blobs b
        WHERE b.state = 'superseded' AND b.changed_at > '-infinity' AND b.changed_at < superseded AND NOT objects.is_named(b.version)
          AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
        LIMIT p_limit)
      LIMIT p_limit) due);
  END IF;
  ids := ARRAY(
    SELECT u.id FROM objects.uploads u WHERE u.created_at < pending
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = u.id AND p.changed_at >= pending)
     ORDER BY u.created_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
  ids := ARRAY(SELECT x.id FROM unnest(ids) x (id) WHERE fence.try_lock(hashtextextended(x.id::text, 2), true));   -- objects.hold_upload
  ids := ARRAY(SELECT x.id FROM unnest(ids) x (id) WHERE NOT EXISTS (SELECT FROM objects.parts p WHERE p.upload = x.id AND p.changed_at >= pending));
  DELETE FROM objects.parts WHERE upload = ANY (ids);
  DELETE FROM objects.uploads WHERE id = ANY (ids);
  ids := ARRAY(
    SELECT b.id FROM objects.blobs b
     WHERE b.state = 'pending' AND b.changed_at > '-infinity' AND b.changed_at < pending AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     ORDER BY b.changed_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
  ids := ids || ARRAY(
    SELECT b.id FROM objects.blobs b
     WHERE b.state = 'superseded' AND b.changed_at > '-infinity' AND b.changed_at < superseded AND NOT objects.is_named(b.version)
       AND NOT EXISTS (SELECT FROM objects.parts p WHERE p.blob = b.id)
     ORDER BY b.changed_at LIMIT p_limit - cardinality(ids) FOR UPDATE SKIP LOCKED);
  UPDATE objects.blobs SET state = 'condemned', changed_at = now() WHERE id = ANY (ids);
  RETURN cardinality(ids);
END $$;
REVOKE ALL ON FUNCTION objects.condemn(interval, interval, integer, boolean, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.condemn(interval, interval, integer, boolean, boolean) TO fence_gateway;

-- Returns condemned blobs whose bytes were not deleted yet, or not since p_again ago, and which this sweep, which began at
-- p_begun, did not try; those that failed before come last.
CREATE OR REPLACE FUNCTION objects.condemned(p_again interval, p_begun timestamptz, p_limit integer) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
  n integer;
BEGIN
  RETURN QUERY SELECT b.id FROM objects.blobs b
    WHERE b.state = 'condemned' AND (b.swept_at = b.tried_at) IS NOT TRUE AND b.tried_at IS NULL
    ORDER BY b.tried_at NULLS FIRST, b.changed_at LIMIT p_limit;   -- as the index has them
  GET DIAGNOSTICS n = ROW_COUNT;
  p_limit := p_limit - n;
  RETURN QUERY SELECT b.id FROM objects.blobs b
    WHERE b.state = 'condemned' AND (b.swept_at = b.tried_at) IS TRUE AND b.swept_at < least(now() - p_again, p_begun)
    ORDER BY b.swept_at LIMIT p_limit;
  GET DIAGNOSTICS n = ROW_COUNT;
  p_limit := p_limit - n;
  RETURN QUERY SELECT b.id FROM objects.blobs b
    WHERE b.state = 'condemned' AND (b.swept_at = b.tried_at) IS NOT TRUE AND b.tried_at < p_begun
      AND (b.swept_at IS NULL OR b.swept_at < now() - p_again)
    ORDER BY b.tried_at NULLS FIRST LIMIT p_limit;
END $$;
REVOKE ALL ON FUNCTION objects.condemned(interval, timestamp with time zone, integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.condemned(interval, timestamp with time zone, integer) TO fence_gateway;

-- Records that the bytes of p_deleted were deleted, and that those of p_failed could not be. Deletes the rows of those of
-- p_deleted that have been condemned for longer than p_forget.
CREATE OR REPLACE FUNCTION objects.swept(p_deleted uuid[], p_failed uuid[], p_forget interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  WITH gone AS (
    DELETE FROM objects.blobs WHERE id = ANY (p_deleted) AND state = 'condemned' AND changed_at < now() - p_forget RETURNING version)
  INSERT INTO objects.retired (version) SELECT DISTINCT g.version FROM gone g WHERE g.version IS NOT NULL ON CONFLICT DO NOTHING;
  UPDATE objects.blobs SET tried_at = now(), swept_at = CASE WHEN id = ANY (p_deleted) THEN now() ELSE swept_at END
   WHERE id = ANY (p_deleted || p_failed) AND state = 'condemned';
END $$;
REVOKE ALL ON FUNCTION objects.swept(uuid[], uuid[], interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.swept(uuid[], uuid[], interval) TO fence_gateway;

-- Releases kept versions that their bucket keeps no longer, of at most p_limit keys of one bucket, the next ones after
-- (p_bucket, p_key). Returns the last key that it looked at, NULL after the last. Their blobs become superseded, unless another
-- version lists them; the sweep's grace then applies to them. A deletion does not count, and is released when it hides no kept
-- version. Each call is a short transaction: while it runs, no session can make this bucket keep more.
CREATE OR REPLACE FUNCTION objects.prune_versions(p_bucket text, p_key text, p_limit integer, p_dry boolean, OUT pruned integer, OUT bucket text, OUT key text)
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
REVOKE ALL ON FUNCTION objects.prune_versions(text, text, integer, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.prune_versions(text, text, integer, boolean) TO fence_gateway;

-- Deletes the rows of deletions, and of changes of tags, that are older than p_age, at most p_limit of each. They recognise late
-- attempts, so a row stays while its grant may be current: until the fence stands above its token, or has ended it, or was armed
-- before that time, too. No lease is held for as long as p_age, and no attempt takes so long. Returns how many it found, the
-- greater number of the two: fewer than p_limit means that none is left.
CREATE OR REPLACE FUNCTION objects.forget_deletions(p_age interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off AS $$
DECLARE
  deletions uuid[];
  changes uuid[];
  before CONSTANT timestamptz := now() - p_age;
BEGIN
  PERFORM objects.begin_change();
  deletions := ARRAY(
    SELECT v.id FROM objects.versions v
     WHERE v.deletion AND v.kept_order IS NULL AND v.created_at < before
       AND NOT EXISTS (SELECT FROM fence.resources f
                        WHERE f.resource = v.resource AND f.token <= v.token AND f.ended_at IS NULL AND f.armed_at >= before)
     ORDER BY v.created_at LIMIT p_limit FOR UPDATE OF v SKIP LOCKED);
  changes := ARRAY(
    SELECT t.id FROM objects.taggings t
     WHERE t.created_at < before
       AND NOT EXISTS (SELECT FROM fence.resources f
                        WHERE f.resource = t.resource AND f.token <= t.token AND f.ended_at IS NULL AND f.armed_at >= before)
     ORDER BY t.created_at LIMIT p_limit FOR UPDATE OF t SKIP LOCKED);
  IF NOT p_dry THEN
    DELETE FROM objects.versions v WHERE v.id = ANY (deletions);
    DELETE FROM objects.taggings t WHERE t.id = ANY (changes);
  END IF;
  RETURN greatest(cardinality(deletions), cardinality(changes));
END $$;
REVOKE ALL ON FUNCTION objects.forget_deletions(interval, integer, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.forget_deletions(interval, integer, boolean) TO fence_gateway;

-- Deletes the rows of versions whose bytes have been gone for longer than p_age, and of attempts recorded before that. They say
-- who wrote a version, and recognise a late attempt. So p_age is longer than credentials last, plus the time of their last
-- attempts. Ages count from objects.ages_since. Returns how many it looked at: fewer than p_limit means that none is left.
CREATE OR REPLACE FUNCTION objects.forget_versions(p_age interval, p_limit integer, p_dry boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  roots uuid[];
  before CONSTANT timestamptz := now() - p_age;
  attempts integer := 0;
BEGIN
  PERFORM objects.begin_change();
  IF objects.ages_since(p_dry) >= before THEN
    RETURN 0;
  END IF;
  IF p_dry THEN
    RETURN (SELECT count(*) FROM (SELECT FROM objects.retired r WHERE r.since < before LIMIT p_limit) due);
  END IF;
  roots := ARRAY(SELECT r.version FROM objects.retired r WHERE r.since < before ORDER BY r.since LIMIT p_limit FOR UPDATE SKIP LOCKED);
  DELETE FROM objects.versions v
   WHERE v.id IN (SELECT x.id FROM objects.versions x WHERE x.id = ANY (roots) UNION ALL SELECT x.id FROM objects.versions x WHERE x.origin = ANY (roots))
     AND v.kept_order IS NULL
     AND NOT EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id);
  DELETE FROM objects.retired r WHERE r.version = ANY (roots);
  DELETE FROM objects.attempts a WHERE a.ctid = ANY (ARRAY(SELECT x.ctid FROM objects.attempts x WHERE x.created_at < before LIMIT p_limit FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS attempts = ROW_COUNT;
  RETURN greatest(cardinality(roots), attempts);
END $$;
REVOKE ALL ON FUNCTION objects.forget_versions(interval, integer, boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.forget_versions(interval, integer, boolean) TO fence_gateway;

-- Returns the mark of the blob store's owner. A promoted standby has the same; a restored dump, a copy by CREATE DATABASE, and
-- pg_upgrade have another one.
CREATE OR REPLACE FUNCTION objects.owner_mark() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('installation %s database %s/%s', o.id, split_part((SELECT i.identity FROM fence.identity() i), '/', 1), d.oid)
    FROM objects.installation o, pg_database d WHERE d.datname = current_database()
$$;
REVOKE ALL ON FUNCTION objects.owner_mark() FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.owner_mark() TO fence_gateway;

-- Inserts rows for blobs that are in the store and have none: those of a database that was restored to an earlier state, or
-- bytes that arrived after their row was deleted. They are superseded from now on, so the same graces apply as to all others. An
-- upload's row is committed before its first byte is sent, so no upload under way is among them. `named`: blobs without a row
-- that a current or kept version lists; they are left alone, and an operator should investigate. It reads all versions, so
-- its caller passes many blobs at a time, and gives it time.
CREATE OR REPLACE FUNCTION objects.adopt(p_blobs uuid[], p_dry boolean, OUT adopted integer, OUT named integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
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
  listed := ARRAY(
    WITH found AS MATERIALIZED (   -- looks each blob of each version up in a hash; is_named sees only those that were found
      SELECT DISTINCT u.id, coalesce(v.origin, v.id) AS origin
        FROM objects.versions v CROSS JOIN unnest(v.blobs) x (id) JOIN unnest(unknown) u (id) ON u.id = x.id)
    SELECT DISTINCT f.id FROM found f WHERE objects.is_named(f.origin));
  named := cardinality(listed);
  adopted := cardinality(unknown) - named;
  IF NOT p_dry THEN
    INSERT INTO objects.blobs (id, state) SELECT x.id, 'superseded' FROM (SELECT unnest(unknown) EXCEPT SELECT unnest(listed)) x (id)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS adopted = ROW_COUNT;
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.adopt(uuid[], boolean) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.adopt(uuid[], boolean) TO fence_gateway;
