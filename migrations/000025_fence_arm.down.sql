-- Arming in two transactions again.
SET ROLE fence_owner;
DROP FUNCTION fence.arm(text, bigint, bytea, text, interval);
DROP FUNCTION fence.arm_otherwise(text, bigint, bytea, text, interval);
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 21';
