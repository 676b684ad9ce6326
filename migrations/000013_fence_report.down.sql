-- CASCADE takes the reporting guards off the tables.
DROP FUNCTION fence.make_counter(integer);
DROP FUNCTION fence.report_rows(regclass, text, text[], text);
DROP FUNCTION fence.report() CASCADE;
DROP FUNCTION fence.try_settings(text);
DROP FUNCTION fence.log_refusal(regclass, text, text, fence.verdict);
DROP FUNCTION fence.judge_rows(regclass, text[], bigint[], text);
DROP FUNCTION fence.arguments(bytea);
DROP SEQUENCE fence.protections;
CREATE OR REPLACE FUNCTION fence.patience() RETURNS numeric LANGUAGE sql IMMUTABLE AS $$ SELECT 5000.0 $$;
DO $$
DECLARE
  counter regclass;
BEGIN
  FOR counter IN SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind = 'S' AND c.relname LIKE 'refused\_%' LOOP
    EXECUTE pg_catalog.format('DROP SEQUENCE %s', counter);
  END LOOP;
END $$;
COMMENT ON SCHEMA fence IS 'fencegate schema version 12';
