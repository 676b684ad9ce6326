package pgfence

// The statements of this package. Seals and their hashes are always parameters.
const (
	sqlArm        = `SELECT fence.arm($1, $2, $3, $4, $5::bigint * interval '1 us')`
	sqlRaise      = `SELECT raised, recorded FROM fence.raise($1, $2, $3, $4, $5::bigint * interval '1 us')`
	sqlDrain      = `SELECT ours, recorded FROM fence.drain($1, $2, $3, $4::bigint * interval '1 us', $5::bigint * interval '1 us')`
	sqlRaiseAll   = `SELECT raised, resource, recorded FROM fence.raise_all($1::text[], $2::bigint[], $3::bytea[], $4::text[], $5::bigint * interval '1 us')`
	sqlDrainAll   = `SELECT ours, resource, recorded FROM fence.drain_all($1::text[], $2::bigint[], $3::bytea[], $4::bigint * interval '1 us', $5::bigint * interval '1 us')`
	sqlRevoke     = `SELECT token, seal_hash FROM fence.revoke($1, nullif($2, ''))`
	sqlRaiseEpoch = `SELECT fence.raise_epoch($1)`

	sqlInspect = `SELECT resource, token, sealed, holder, armed_at, undrained FROM fence.fences WHERE resource = $1`

	// The names that begin with $1 lie between it and itself followed by the greatest code points that fit into a name.
	sqlList = `SELECT resource, token, sealed, holder, armed_at, undrained FROM fence.fences
		WHERE resource >= $1 AND resource <= $1 || repeat(chr(1114111), 128) AND resource > $2
		ORDER BY resource LIMIT $3`

	sqlUse      = `SELECT fence.use($1::text, $2::text)`
	sqlUseMany  = `SELECT fence.use($1::text[], $2::text[])`
	sqlCheck    = `SELECT fence.check()`
	sqlOutcome  = `SELECT fence.outcome($1::text, $2::text)`
	sqlWaits    = `SELECT ` + waiting
	waiting     = `pg_catalog.current_setting('synchronous_standby_names') <> '' AND pg_catalog.current_setting('synchronous_commit') NOT IN ('off', 'local')`
	sqlMarkedAs = `, pg_catalog.set_config('fence.in_tx', 'true', true), ` + waiting + `, ` + identity

	// What names the transaction once its COMMIT was not answered.
	identity = `CASE WHEN NOT pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN pg_catalog.pg_current_xact_id()::pg_catalog.text END, fence.server_run()`

	// InTx marks the transaction that it begins, for sqlCommit to see.
	sqlUseMarked     = sqlUse + sqlMarkedAs
	sqlUseManyMarked = sqlUseMany + sqlMarkedAs

	// Commits the transaction that InTx began, and no other: the mark ends with its transaction, so after a COMMIT by
	// the caller's function the cast fails and names txEnded.
	sqlCommit  = sqlStillIn + `; COMMIT`
	sqlStillIn = `SELECT coalesce(nullif(pg_catalog.current_setting('fence.in_tx', true), ''), '` + txEnded + `')::pg_catalog.bool`
	txEnded    = `the transaction begun by InTx has ended`
)
