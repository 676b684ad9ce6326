package pgfence

// The statements of this package. Seals and their hashes are always parameters.
const (
	sqlRaise      = `SELECT raised, recorded FROM fence.raise($1, $2, $3, $4, $5::bigint * interval '1 us')`
	sqlDrain      = `SELECT ours, recorded FROM fence.drain($1, $2, $3, $4::bigint * interval '1 us', $5::bigint * interval '1 us')`
	sqlRevoke     = `SELECT token, seal_hash FROM fence.revoke($1, nullif($2, ''))`
	sqlRaiseEpoch = `SELECT fence.raise_epoch($1)`

	sqlInspect = `SELECT resource, token, sealed, holder, armed_at, undrained FROM fence.fences WHERE resource = $1`

	// The names that begin with $1 lie between it and itself followed by the greatest code points that fit into a name.
	sqlList = `SELECT resource, token, sealed, holder, armed_at, undrained FROM fence.fences
		WHERE resource >= $1 AND resource <= $1 || repeat(chr(1114111), 128) AND resource > $2
		ORDER BY resource LIMIT $3`

	sqlUse   = `SELECT fence.use($1, $2)`
	sqlCheck = `SELECT fence.check()`

	// InTx marks the transaction that it begins, for sqlCommit to see.
	sqlUseMarked = `SELECT fence.use($1, $2), pg_catalog.set_config('fence.in_tx', 'true', true)`

	// Commits the transaction that InTx began, and no other: the mark ends with its transaction, so after a COMMIT by
	// the caller's function the cast fails and names txEnded.
	sqlCommit = `SELECT coalesce(nullif(pg_catalog.current_setting('fence.in_tx', true), ''), '` + txEnded + `')::pg_catalog.bool; COMMIT`
	txEnded   = `the transaction begun by InTx has ended`
)
