-- CASCADE takes the guards of rows, and the stamps, off the tables.
DO $$
DECLARE
  made regprocedure;
BEGIN
  FOR made IN SELECT p.oid FROM pg_catalog.pg_proc p
               WHERE p.pronamespace = 'fence'::regnamespace AND p.proname ~ '^(rows|stamp|resource_of)_[0-9]+$' LOOP
    EXECUTE pg_catalog.format('DROP FUNCTION %s CASCADE', made);
  END LOOP;
END $$;
DROP FUNCTION fence.tidy();
DROP FUNCTION fence.make_stamp(integer, name, text);
DROP FUNCTION fence.make_rows(regclass, name);
DROP FUNCTION fence.expression_fault(regclass);
DROP FUNCTION fence.guard_rows() CASCADE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 13';
