-- CASCADE takes the guards off the tables: they call fence.guard.
DROP FUNCTION fence.check_issued(text, bigint);
DROP FUNCTION fence.use(text, text);
DROP FUNCTION fence.check(text);
DROP FUNCTION fence.guard() CASCADE;
DROP FUNCTION fence.replicates();
DROP FUNCTION fence.fast_check(text, text);
DROP FUNCTION fence.verify_settings(text);
DROP FUNCTION fence.verify(text, bigint, bytea, text);
DROP FUNCTION fence.raise_unsealed(text, bigint);
DROP FUNCTION fence.commit_durably();
DROP FUNCTION fence.is_newest(text);
DROP FUNCTION fence.accepts_unsealed(text);
DROP FUNCTION fence.refusal(text, text, text, bigint, bigint, text, text, text);
DROP TYPE fence.verdict;
DROP FUNCTION fence.unescape(text);
COMMENT ON SCHEMA fence IS 'fencegate schema version 1';
