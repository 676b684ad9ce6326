-- Rules of prefixes, and two kinds of rule beside the lease: `monotone`, for tokens that are minted elsewhere and only have to
-- rise, and `none`, for what needs no token at all. The longest prefix of a key that has a rule decides, else its bucket's.

SET ROLE fence_owner;

ALTER TABLE objects.buckets ADD COLUMN mode text NOT NULL DEFAULT 'lease' CHECK (mode IN ('lease', 'monotone', 'none'));

CREATE TABLE objects.prefix_rules (
  bucket text COLLATE "C" NOT NULL REFERENCES objects.buckets ON DELETE CASCADE,
  prefix text COLLATE "C" NOT NULL CHECK (prefix <> ''),
  depth  integer NOT NULL CHECK (depth >= -1),
  mode   text NOT NULL CHECK (mode IN ('lease', 'monotone', 'none')),
  PRIMARY KEY (bucket, prefix)
);
GRANT SELECT ON objects.prefix_rules TO fence_gateway;

CREATE FUNCTION objects.rule_of(p_bucket text, p_key text, OUT depth integer, OUT mode text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(r.depth, b.depth), coalesce(r.mode, b.mode)
    FROM objects.buckets b LEFT JOIN LATERAL (
      SELECT x.depth, x.mode FROM objects.prefix_rules x
       WHERE x.bucket = b.name AND starts_with(p_key, x.prefix) ORDER BY length(x.prefix) DESC LIMIT 1) r ON true
   WHERE b.name = p_bucket
$$;

-- The check of a token that was minted elsewhere: it raises the fence where it is higher. A resource whose grants have seals is
-- no such one: nobody may take it from its holder by a mere number.
CREATE FUNCTION objects.raise_monotone(p_resource text, p_token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f record;
  v fence.verdict;
  fault text := coalesce('resource ' || fence.resource_fault(p_resource),
                         CASE WHEN coalesce(p_token, 0) <= 0 OR p_token >= 9007199254740992 THEN 'token is not between 1 and 9007199254740991' END);
BEGIN
  FOR turn IN 1..2 LOOP
    SELECT r.token, r.seal INTO f FROM fence.resources r WHERE r.resource = p_resource;
    IF f.seal IS NOT NULL THEN
      fault := 'resource is held under a lease, which has a seal; give the prefix a resource of its own';
    END IF;
    IF fault IS NOT NULL THEN
      v := fence.refusal('ZF003', fault, left(p_resource, 512), p_token, f.token);
    ELSIF turn = 1 AND (f.token IS NULL OR f.token < p_token) THEN
      v := fence.raise_unsealed(p_resource, p_token);
    END IF;
    IF v.state IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
    END IF;
    IF turn = 1 THEN
      p_token := fence.check_issued(p_resource, p_token);   -- from here on nobody can raise it
    END IF;
  END LOOP;
  RETURN p_token;
END $$;

-- As before, for the rule of the key. p_seal is '' for a token without one, which only `monotone` takes. `none` takes everybody;
-- the token is 0 then.
CREATE OR REPLACE FUNCTION objects.authorize(p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule record;
  needed text;
  v fence.verdict;
BEGIN
  -- A change of a rule locks the row exclusively. Not an advisory lock: any login of the database could hold one.
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  SELECT * INTO rule FROM objects.rule_of(p_bucket, p_key);
  IF rule.mode = 'none' THEN
    RETURN 0;
  END IF;
  needed := objects.resource_of(p_bucket, rule.depth, p_key);
  IF p_resource = '' THEN
    v := fence.refusal('ZF002', format('write without a fencing token: it needs a grant of "%s"', needed), NULL, NULL, NULL, needed);
  ELSIF needed <> p_resource THEN
    v := fence.refusal('ZF004', format('grant is for %s, but the write needs %s', p_resource, needed), p_resource, p_token, NULL, needed);
  ELSIF rule.mode = 'monotone' AND p_seal IS DISTINCT FROM '' THEN
    v := fence.refusal('ZF003', 'the rule monotone takes tokens without a seal', p_resource, p_token, NULL);
  ELSIF rule.mode = 'monotone' THEN
    RETURN objects.raise_monotone(p_resource, p_token);
  ELSIF p_seal IS NULL THEN
    RETURN fence.check_issued(p_resource, p_token);
  ELSE
    v := fence.verify(p_resource, p_token, p_seal, 'sealed');
  END IF;
  IF v.state IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = v.state, MESSAGE = v.message, DETAIL = v.detail, HINT = v.hint;
  END IF;
  RETURN v.token;
END $$;

DROP FUNCTION objects.create_bucket, objects.ensure_bucket;
CREATE FUNCTION objects.create_bucket(p_bucket text, p_depth integer, p_mode text DEFAULT 'lease',
                                      OUT created boolean, OUT current_depth integer, OUT current_mode text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  LOOP
    created := false;
    SELECT depth, mode INTO current_depth, current_mode FROM objects.buckets WHERE name = p_bucket;
    EXIT WHEN FOUND;
    created := true;
    INSERT INTO objects.buckets (name, depth, mode) VALUES (p_bucket, p_depth, p_mode) ON CONFLICT DO NOTHING
    RETURNING depth, mode INTO current_depth, current_mode;
    EXIT WHEN FOUND;
  END LOOP;   -- created by somebody else in between: look at it
END $$;

CREATE FUNCTION objects.ensure_bucket(p_bucket text, p_depth integer, p_mode text DEFAULT 'lease') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_or_made record;
BEGIN
  LOOP
    SELECT * INTO found_or_made FROM objects.create_bucket(p_bucket, p_depth, p_mode);
    IF found_or_made.current_depth = p_depth AND found_or_made.current_mode = p_mode THEN
      RETURN found_or_made.created;
    END IF;
    PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
    EXIT WHEN FOUND;
  END LOOP;   -- deleted in between
  IF EXISTS (SELECT FROM objects.pointers WHERE bucket = p_bucket) THEN
    RAISE EXCEPTION 'bucket % holds objects that were written under another rule', p_bucket USING ERRCODE = 'ZO007';
  END IF;
  UPDATE objects.buckets SET depth = p_depth, mode = p_mode WHERE name = p_bucket;
  RETURN false;
END $$;

-- Gives a prefix of a bucket a rule of its own, or takes it away (p_depth NULL). Not while objects lie below that were written
-- under another one; an upload that is under way is judged by the rule at its commit.
CREATE FUNCTION objects.set_prefix_rule(p_bucket text, p_prefix text, p_depth integer, p_mode text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM objects.begin_change();
  PERFORM 1 FROM objects.buckets WHERE name = p_bucket FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no bucket %', p_bucket USING ERRCODE = 'ZO001';
  END IF;
  IF EXISTS (SELECT FROM objects.prefix_rules r WHERE r.bucket = p_bucket AND r.prefix = p_prefix AND r.depth = p_depth AND r.mode = p_mode)
     OR p_depth IS NULL AND NOT EXISTS (SELECT FROM objects.prefix_rules r WHERE r.bucket = p_bucket AND r.prefix = p_prefix) THEN
    RETURN;
  END IF;
  IF EXISTS (SELECT FROM objects.list(p_bucket, p_prefix, '', '', 1)) THEN
    RAISE EXCEPTION 'bucket % holds objects below % that were written under another rule', p_bucket, p_prefix USING ERRCODE = 'ZO007';
  END IF;
  DELETE FROM objects.prefix_rules r WHERE r.bucket = p_bucket AND r.prefix = p_prefix;
  IF p_depth IS NOT NULL THEN
    INSERT INTO objects.prefix_rules (bucket, prefix, depth, mode) VALUES (p_bucket, p_prefix, p_depth, p_mode);
  END IF;
END $$;

REVOKE ALL ON FUNCTION objects.rule_of, objects.raise_monotone, objects.create_bucket, objects.ensure_bucket, objects.set_prefix_rule FROM PUBLIC;
GRANT EXECUTE ON FUNCTION objects.rule_of, objects.create_bucket, objects.ensure_bucket, objects.set_prefix_rule TO fence_gateway;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 32';
