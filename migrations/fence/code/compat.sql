-- Signatures that a newer one has replaced. A signature that gateways or users call never changes: a new one is added beside it,
-- and the old one moves here for one release, so that the previous gateway works during an upgrade. The release after that drops
-- it here (DROP FUNCTION IF EXISTS ...), and raises min_program in manifest.txt if that ends an older program.

-- No gateway called this: replaced within the fence.
DROP FUNCTION IF EXISTS fence.fast_check(text, text);
DROP FUNCTION IF EXISTS fence.verify_presented(text, text, text);
DROP FUNCTION IF EXISTS fence.judge_rows(regclass, text[], bigint[], text);
DROP FUNCTION IF EXISTS fence.report_rows(regclass, text, text[], text);
DROP FUNCTION IF EXISTS fence.log_refusal(regclass, text, text, fence.verdict);
DROP FUNCTION IF EXISTS fence.make_stamp(integer, name, text);
-- Only the code itself called these.
DROP FUNCTION IF EXISTS fence.forget(regclass);
DROP FUNCTION IF EXISTS fence.cover(regclass);
DROP FUNCTION IF EXISTS fence.need_intact(regclass);
DROP FUNCTION IF EXISTS fence.need_writer();
DROP FUNCTION IF EXISTS fence.put_guards(fence.registry);
DROP FUNCTION IF EXISTS fence.remember_schema(fence.schemas);
DROP FUNCTION IF EXISTS fence.tidy();
DROP FUNCTION IF EXISTS fence.sees_moves(regclass, integer, boolean);

-- Event triggers that an earlier version installed call these. fence_owner owns them, so they must do nothing for a superuser.
CREATE OR REPLACE FUNCTION fence.keep() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE WARNING 'the event triggers of an earlier version of fencegate keep no guard any longer'
    USING HINT = 'As a superuser: SELECT fence.install_event_triggers();';
END $$;
REVOKE ALL ON FUNCTION fence.keep() FROM PUBLIC, fence_writer, fence_gateway;

CREATE OR REPLACE FUNCTION fence.keep_dropped() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NULL;   -- see fence.keep
END $$;
REVOKE ALL ON FUNCTION fence.keep_dropped() FROM PUBLIC, fence_writer, fence_gateway;
