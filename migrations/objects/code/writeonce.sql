-- Buckets whose objects are written once. An object's retention begins when it is written. Until it ends, its key can be neither
-- overwritten nor deleted, and its tags stay. So a reader that has found the key may remember that until then; no reader may
-- remember that a key is absent.
--
-- A key that was found was written before. Every path that takes a pointer away from a version goes through objects.retire or
-- objects.remove_version, which ask here, under the pointer's lock and the bucket's rules.
--
--   ZO012 the object's retention has not ended (DETAIL: when it does, in UTC)

-- Refuses to take a version away, or to change it, before its retention ends. A deletion has none.
CREATE OR REPLACE FUNCTION objects.check_retained(p_bucket text, p_version uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  until timestamptz := (SELECT v.created_at + b.retention FROM objects.buckets b, objects.versions v
                         WHERE b.name = p_bucket AND v.id = p_version AND NOT v.deletion);
BEGIN
  IF until > clock_timestamp() THEN
    RAISE EXCEPTION 'bucket % is written once: this object can''t change before its retention ends', p_bucket
      USING ERRCODE = 'ZO012', DETAIL = to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
  END IF;
END $$;
REVOKE ALL ON FUNCTION objects.check_retained(text, uuid) FROM PUBLIC, fence_writer, fence_gateway;

-- Sets how long the objects of a bucket can't change; NULL: not at all. The time counts from an object's writing. It becomes
-- shorter only if the bucket holds no object: gateways remember the keys that they found.
CREATE OR REPLACE FUNCTION objects.set_retention(p_bucket text, p_retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was interval;
BEGIN
  PERFORM objects.begin_change();
  SELECT b.retention INTO was FROM objects.buckets b WHERE b.name = p_bucket FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  PERFORM objects.wait_for_writes(p_bucket);
  IF was > coalesce(p_retention, '0') AND EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = p_bucket) THEN
    RAISE EXCEPTION 'bucket % holds objects that are written once, for longer', p_bucket USING ERRCODE = 'ZO013';
  END IF;
  UPDATE objects.buckets SET retention = p_retention WHERE name = p_bucket;
END $$;
REVOKE ALL ON FUNCTION objects.set_retention(text, interval) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.set_retention(text, interval) TO fence_gateway;
