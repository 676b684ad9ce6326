package sqlfence

// The statements of this package. Seals are always parameters.
const (
	sqlUse     = `SELECT fence.use($1::text, $2::text), pg_catalog.set_config('fence.in_tx', 'true', true)`
	sqlUseMany = `SELECT fence.use(pg_catalog.array_agg(x.r), pg_catalog.array_agg(x.k)), pg_catalog.set_config('fence.in_tx', 'true', true)
		FROM pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb) x(r text, k text)`
	sqlCheck = `SELECT fence.check()`

	// Names the transaction that InTx began, and no other: the mark fence.in_tx ends with its transaction, so after a COMMIT
	// by the caller's function the cast fails and names txEnded.
	sqlMark = `SELECT coalesce(nullif(pg_catalog.current_setting('fence.in_tx', true), ''), '` + txEnded + `')::pg_catalog.bool,
		coalesce(pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text, ''), fence.server_run()`
	txEnded = `the transaction begun by InTx has ended`

	sqlOutcome = `SELECT fence.outcome($1::text, $2::text)`

	sqlRaise   = `SELECT raised, recorded FROM fence.raise($1::text, $2::bigint, $3::bytea, $4::text, $5::bigint * interval '1 us')`
	sqlDrain   = `SELECT ours, recorded FROM fence.drain($1::text, $2::bigint, $3::bytea, $4::bigint * interval '1 us', $5::bigint * interval '1 us')`
	sqlRevoke  = `SELECT token, seal_hash FROM fence.revoke($1::text, nullif($2::text, ''))`
	sqlInspect = `SELECT resource, token, sealed, holder, armed_at, undrained FROM fence.fences WHERE resource = $1::text`
)
