DROP VIEW fence.uncovered;
DROP FUNCTION fence.unprotect_schema(regnamespace);
DROP FUNCTION fence.protect_schema(regnamespace, text, text, text, text, name);
DROP FUNCTION fence.tables_of(regnamespace);
DROP FUNCTION fence.remember_schema(fence.schemas);
DROP TABLE fence.schemas;
COMMENT ON SCHEMA fence IS 'fencegate schema version 15';
