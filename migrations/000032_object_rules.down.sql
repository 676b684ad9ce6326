-- Prefixes follow their bucket's rule again, and every bucket asks for a lease.
SET ROLE fence_owner;
DROP FUNCTION objects.raise_monotone, objects.create_bucket, objects.ensure_bucket, objects.set_prefix_rule;

CREATE OR REPLACE FUNCTION objects.authorize(p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  d integer;
  needed text;
  v fence.verdict;
BEGIN
  -- A change of the rule locks the row exclusively. Not an advisory lock: any login of the database could hold one.
  SELECT depth INTO d FROM objects.buckets WHERE name = p_bucket FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  needed := objects.resource_of(p_bucket, d, p_key);
  IF needed <> p_resource THEN
    RAISE EXCEPTION 'grant is for %, but the write needs %', p_resource, needed USING ERRCODE = 'ZF004',
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'needed', needed)::text,
      HINT = 'Acquire the resource that the write needs.';
  END IF;
  IF p_seal IS NULL THEN
    RETURN fence.check_issued(p_resource, p_token);
  END IF;
  v := fence.verify(p_resource, p_token, p_seal, 'sealed');
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;

CREATE FUNCTION objects.create_bucket(p_bucket text, p_depth integer, OUT created boolean, OUT current_depth integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  LOOP
    created := false;
    SELECT depth INTO current_depth FROM objects.buckets WHERE name = p_bucket;
    EXIT WHEN FOUND;
    created := true;
    INSERT INTO objects.buckets (name, depth) VALUES (p_bucket, p_depth) ON CONFLICT DO NOTHING RETURNING depth INTO current_depth;
    EXIT WHEN FOUND;
  END LOOP;   -- created by somebody else in between: look at it
END $$;

CREATE FUNCTION objects.ensure_bucket(p_bucket text, p_depth integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_or_made record;
BEGIN
  LOOP
    SELECT * INTO found_or_made FROM objects.create_bucket(p_bucket, p_depth);
    IF found_or_made.current_depth = p_depth THEN
      RETURN found_or_made.created;
    END IF;
    PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
    EXIT WHEN FOUND;
  END LOOP;   -- deleted in between
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket) THEN
    RAISE EXCEPTION 'bucket % holds objects that were written under another rule', p_bucket USING ERRCODE = 'ZO007';
  END IF;
  UPDATE objects.buckets SET depth = p_depth WHERE name = p_bucket;
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION objects.create_bucket, objects.ensure_bucket FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.create_bucket, objects.ensure_bucket TO fence_gateway;

DROP FUNCTION objects.rule_of;
DROP TABLE objects.prefix_rules;
ALTER TABLE objects.buckets DROP COLUMN mode;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 31';
