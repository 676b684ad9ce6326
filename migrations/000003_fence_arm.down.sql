DROP FUNCTION fence.raise_epoch(bigint);
DROP FUNCTION fence.revoke(text, text);
DROP FUNCTION fence.drain(text, bigint, bytea, interval, interval);
DROP FUNCTION fence.end_holders(bigint);
DROP FUNCTION fence.raise(text, bigint, bytea, text, interval);
DROP FUNCTION fence.need_read_committed();
COMMENT ON SCHEMA fence IS 'fencegate schema version 2';
