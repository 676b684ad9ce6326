-- Arming in one transaction, where nobody is in the way.
--
--   SELECT fence.arm('orders/1001', 35, <seal hash>, 'worker-b');   -- a transaction of its own, committed; false: raise and drain
--
-- How. What draining would wait for, the superseded grants' keys, is locked exclusively, if they are free, before the row is
-- changed and until the COMMIT is through. So whoever passed the check under those grants has ended before, and whoever comes
-- meanwhile waits for the COMMIT and then reads the new token: there is nothing left to drain. (Keys are given back after the
-- COMMIT can be seen.) Where a key is not free, raising must come first and waiting after it, as ever: fence.raise, fence.drain.
-- A writer of the superseded grant waits as long as the COMMIT takes; so nothing else belongs into this transaction.
--
-- It is what a lease costs on top of its lock, so every name is qualified instead of a SET clause.
SET ROLE fence_owner;

-- true: the fence holds this grant, by this call, and no writer of an older one is in flight. false: fence.raise and
-- fence.drain have to decide. Nothing was changed then, or, for a resource without a fence, it is raised.
CREATE FUNCTION fence.arm(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval DEFAULT '5 s')
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
  IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
     AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'on' THEN
    -- Its turn among those who change the row, as in fence.raise.
    PERFORM FROM fence.arms a WHERE a.resource OPERATOR(pg_catalog.=) p_resource FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      -- CASE, because the key is locked only where the rest is so. NULL is for arm_otherwise.
      UPDATE fence.resources f
         SET token = p_token, seal = p_seal_hash, holder = coalesce(p_holder, ''), armed_at = pg_catalog.now()
       WHERE f.resource OPERATOR(pg_catalog.=) p_resource
         AND CASE WHEN f.token OPERATOR(pg_catalog.<) p_token AND f.undrained OPERATOR(pg_catalog.=) '{}'::pg_catalog.int8[]
                   AND f.seal OPERATOR(pg_catalog.<>) p_seal_hash
                  THEN pg_catalog.pg_try_advisory_xact_lock(fence.key(f.resource, f.token, f.seal)) END;
      IF FOUND THEN
        RETURN true;
      END IF;
    END IF;
  END IF;
  RETURN fence.arm_otherwise(p_resource, p_token, p_seal_hash, p_holder, p_limit);
END $$;
REVOKE ALL ON FUNCTION fence.arm(text, bigint, bytea, text, interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.arm(text, bigint, bytea, text, interval) TO fence_gateway;

-- The rarer cases: keys that earlier raises have left, the first grant of all, an unsealed one.
CREATE FUNCTION fence.arm_otherwise(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    RETURN false;
  END IF;
  PERFORM FROM fence.arms a WHERE a.resource = p_resource FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE fence.resources f
       SET token = p_token, seal = p_seal_hash, holder = coalesce(p_holder, ''), armed_at = now(), undrained = '{}'
     WHERE f.resource = p_resource
       AND CASE WHEN f.token < p_token AND fence.key(p_resource, p_token, p_seal_hash) <> ALL (f.undrained || fence.key(f.resource, f.token, f.seal))
                THEN NOT EXISTS (SELECT FROM unnest(f.undrained || fence.key(f.resource, f.token, f.seal)) k WHERE NOT pg_try_advisory_xact_lock(k))
                ELSE false END;
    RETURN FOUND;
  END IF;
  IF NOT EXISTS (SELECT FROM fence.resources f WHERE f.resource = p_resource) THEN
    PERFORM fence.raise(p_resource, p_token, p_seal_hash, p_holder, p_limit);
    -- Where it superseded nobody, that is all; another arm may have been first.
    RETURN EXISTS (SELECT FROM fence.resources f WHERE f.resource = p_resource AND f.token = p_token AND f.seal = p_seal_hash AND f.undrained = '{}');
  END IF;
  RETURN false;
END $$;
REVOKE ALL ON FUNCTION fence.arm_otherwise(text, bigint, bytea, text, interval) FROM PUBLIC;

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA fence IS 'fencegate schema version 25';
