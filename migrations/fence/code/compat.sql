-- Signatures that a newer one has replaced. A signature that gateways or users call never changes: a new one is added beside
-- it, and the old one moves here, for one release, so that the previous gateway goes on during an upgrade. The release after
-- that drops it here (DROP FUNCTION IF EXISTS ...), and raises min_program in manifest.txt where that ends an older program.

-- Of no gateway: replaced within the fence.
DROP FUNCTION IF EXISTS fence.fast_check(text, text);
DROP FUNCTION IF EXISTS fence.verify_presented(text, text, text);
DROP FUNCTION IF EXISTS fence.judge_rows(regclass, text[], bigint[], text);
DROP FUNCTION IF EXISTS fence.report_rows(regclass, text, text[], text);
DROP FUNCTION IF EXISTS fence.log_refusal(regclass, text, text, fence.verdict);
DROP FUNCTION IF EXISTS fence.make_stamp(integer, name, text);
