package core

// KeyPrefix begins the names of every database's keys on Redis nodes.
const KeyPrefix = "fencegate:"

// The statements of the fence. Seals and their hashes are always parameters.
const (
	SQLArm        = `SELECT fence.arm($1, $2, $3, $4, $5::bigint * interval '1 us')`
	SQLArmGroup   = `SELECT fence.arm_group($1::text[], $2::bigint[], $3::bytea[], $4::text[])`
	SQLRaise      = `SELECT raised, recorded FROM fence.raise($1::text, $2::bigint, $3::bytea, $4::text, $5::bigint * interval '1 us')`
	SQLDrain      = `SELECT ours, recorded FROM fence.drain($1::text, $2::bigint, $3::bytea, $4::bigint * interval '1 us', $5::bigint * interval '1 us')`
	SQLDrainCount = `SELECT ours, recorded, ended FROM fence.drain($1::text, $2::bigint, $3::bytea, $4::bigint * interval '1 us', $5::bigint * interval '1 us')`
	SQLRaiseAll   = `SELECT raised, resource, recorded FROM fence.raise_all($1::text[], $2::bigint[], $3::bytea[], $4::text[], $5::bigint * interval '1 us')`
	SQLDrainAll   = `SELECT ours, resource, recorded FROM fence.drain_all($1::text[], $2::bigint[], $3::bytea[], $4::bigint * interval '1 us', $5::bigint * interval '1 us')`
	SQLEnd        = `SELECT n, ended, busy, recorded FROM fence.end_grants($1::text[], $2::bigint[], $3::bytea[], $4::bigint * interval '1 us')`
	SQLEndOne     = `SELECT ended, busy, recorded FROM fence.end_grants(ARRAY[$1::text], ARRAY[$2::bigint], ARRAY[$3::bytea], $4::bigint * interval '1 us')`
	SQLRevoke     = `SELECT token, seal_hash FROM fence.revoke($1::text, nullif($2::text, ''))`
	SQLRetire     = `SELECT last, retired, unended FROM fence.retire($1::bigint * interval '1 us', $2::text)`
	SQLFloors     = `SELECT bucket, floor FROM fence.retired`
	SQLKeyPrefix  = `SELECT '` + KeyPrefix + `' || id::text FROM fence.lock_group()`
	SQLRaised     = `SELECT EXISTS (SELECT FROM fence.fences) OR EXISTS (SELECT FROM fence.retired)`
	SQLNextEpoch  = `SELECT fence.next_epoch($1)`

	SQLInspect = `SELECT resource, token, sealed, holder, armed_at, undrained, ended_at FROM fence.fences WHERE resource = $1::text`

	// SQLList reads a page of fences. In byte order, the names that begin with $1 come first among those that are not below
	// it. Their end is filtered, not computed: which character is the last one depends on the database's encoding.
	SQLList = `SELECT resource, token, sealed, holder, armed_at, undrained, ended_at FROM (
			SELECT * FROM fence.fences WHERE resource >= $1 AND resource > $2 ORDER BY resource LIMIT $3) page
		WHERE starts_with(resource, $1) ORDER BY resource`

	SQLUse     = `SELECT fence.use($1::text, $2::text)`
	SQLUseMany = `SELECT fence.use($1::text[], $2::text[])`
	SQLCheck   = `SELECT fence.check()`

	// SQLUseListMarked takes JSON, because drivers of database/sql differ in how they send arrays.
	SQLUseListMarked = `SELECT fence.use(pg_catalog.array_agg(x.r), pg_catalog.array_agg(x.k))` + setMark +
		` FROM pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb) x(r text, k text)`

	// SQLPresents is true if the session itself presents a grant. SQLClear removes such a grant.
	SQLPresents = `SELECT pg_catalog.concat(` + setting + `'fence.resource', true), ` + setting + `'fence.token', true), ` +
		setting + `'fence.grants', true)) <> ''`
	SQLClear = `SELECT pg_catalog.set_config('fence.resource', '', false), pg_catalog.set_config('fence.token', '', false),
		pg_catalog.set_config('fence.grants', '', false)`
	setting = `pg_catalog.current_setting(`

	SQLOutcome = `SELECT fence.outcome($1::text, $2::text)`
	SQLWaits   = `SELECT ` + Waits
	// Waits is true if COMMIT waits for a synchronous standby.
	Waits = `pg_catalog.current_setting('synchronous_standby_names') <> '' AND pg_catalog.current_setting('synchronous_commit') NOT IN ('off', 'local')`

	// InTx marks the transaction that it begins. The mark ends with its transaction, so after a COMMIT by the caller's
	// function the cast in SQLStillIn fails and names TxEnded.
	setMark    = `, pg_catalog.set_config('fence.in_tx', 'true', true)`
	SQLStillIn = `SELECT ` + stillIn
	stillIn    = `coalesce(nullif(pg_catalog.current_setting('fence.in_tx', true), ''), '` + TxEnded + `')::pg_catalog.bool`
	TxEnded    = `the transaction begun by InTx has ended`
	// SQLCommit commits the transaction that InTx began, and no other.
	SQLCommit = SQLStillIn + `; COMMIT`

	SQLUseMarked = SQLUse + setMark
	// SQLUseWithID and SQLUseManyWithID also return the transaction's ID, which resolves an unanswered COMMIT.
	SQLUseWithID     = SQLUseMarked + `, ` + Waits + `, ` + identity
	SQLUseManyWithID = SQLUseMany + setMark + `, ` + Waits + `, ` + identity
	// SQLUseKnown and SQLUseManyKnown are these without what COMMIT waits for.
	SQLUseKnown     = SQLUseMarked + `, ` + identity
	SQLUseManyKnown = SQLUseMany + setMark + `, ` + identity
	identity        = `CASE WHEN NOT pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN pg_catalog.pg_current_xact_id()::pg_catalog.text END, fence.server_run()`
	// SQLName reads the transaction's ID at its end, if it is still the one that InTx began.
	SQLName = SQLStillIn + `,
		coalesce(pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text, ''), fence.server_run()`
)
