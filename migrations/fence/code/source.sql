-- The source of this database's leases, and changing it.

-- Whether a source has this name. 'other' is a source that fencegate has no name for.
CREATE OR REPLACE FUNCTION fence.is_source(p_source text) RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(p_source, '') IN ('postgres', 'redis', 'etcd', 'zookeeper', 'kubernetes', 'other')
$$;
REVOKE ALL ON FUNCTION fence.is_source(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Changes the source of leases. Returns how many leases of PostgreSQL's it ended. For the schema's owner, with every gateway and
-- locker of the database stopped: one of the other kind could grant a resource that is held. Held leases of PostgreSQL refuse
-- the change; with p_end it ends them, lease and grant, as a release does. It does not see leases of Redis. Lock order as in
-- fence.invalidate_all: all turns first. A locker that still runs can grant a lease after this has committed; therefore stop
-- them.
CREATE OR REPLACE FUNCTION fence.change_source(p_source text, p_end boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := current_setting('lock_timeout');
  held record;
BEGIN
  IF NOT fence.is_source(p_source) THEN
    RAISE EXCEPTION 'source is none of postgres, redis, etcd, zookeeper, kubernetes, other' USING ERRCODE = 'invalid_parameter_value';
  ELSIF EXISTS (SELECT FROM fence.lease_source l WHERE l.source = p_source) THEN
    RETURN 0;
  ELSIF EXISTS (SELECT FROM fence.lease_source l WHERE l.identity <> coalesce(fence.server_identity(), '')) THEN
    RAISE EXCEPTION 'PostgreSQL may have forgotten fences: the source can''t change' USING ERRCODE = 'ZF102',
      HINT = 'First: fencegate fence invalidate-all --yes';
  END IF;
  PERFORM fence.commit_durably();
  BEGIN
    PERFORM set_config('lock_timeout', '5s', true);
    LOCK TABLE fence.arms IN EXCLUSIVE MODE;
    LOCK TABLE fence.leases IN SHARE ROW EXCLUSIVE MODE;
  EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'fences or leases are being changed: the source can''t change' USING ERRCODE = 'lock_not_available',
      HINT = 'Stop every gateway and locker of this database, then try again.';
  END;
  SELECT count(*) AS n, array_agg(l.resource) AS names, array_agg(l.token) AS tokens, array_agg(NULL::bytea) AS hashes
    INTO held FROM fence.leases l WHERE l.ends_at > clock_timestamp();
  IF held.n > 0 AND p_end IS NOT TRUE THEN
    RAISE EXCEPTION 'leases of PostgreSQL are held (%): the source can''t change', held.n USING ERRCODE = 'object_in_use',
      HINT = 'Stop their holders and wait until the leases end; or end them: fencegate fence source ' || p_source || ' --yes --end-leases';
  ELSIF held.n > 0 THEN
    PERFORM fence.end_grants(held.names, held.tokens, held.hashes);
    UPDATE fence.leases l SET owner = '', ends_at = '-infinity' WHERE l.resource = ANY (held.names);
  END IF;
  UPDATE fence.lease_source l SET source = p_source, identity = fence.server_identity();
  PERFORM set_config('lock_timeout', before, true);   -- as in fence.invalidate_all
  RETURN held.n;
END $$;
REVOKE ALL ON FUNCTION fence.change_source(text, boolean) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;

-- The same; refuses while a lease is held.
CREATE OR REPLACE FUNCTION fence.set_source(p_source text) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
  SELECT FROM fence.change_source(p_source, false)
$$;
REVOKE ALL ON FUNCTION fence.set_source(text) FROM PUBLIC, fence_writer, fence_gateway, fence_locker;
