// Package sqlfence is package pgfence for database/sql, whatever the driver is:
// pgx's stdlib and lib/pq are tested. So GORM, sqlx, ent and bun work under a
// grant too: hand them the transaction.
//
// The guarantee is that of [github.com/fencegate/fencegate/fence/pgfence]: once a
// newer grant is armed, no transaction under an older one can commit. It
// committed before, or it fails with [fence.ErrStale].
//
//	err := sqlfence.InTx(ctx, db, grant, func(tx *sql.Tx) error { // a login that is fence_writer
//		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = 1001")
//		return err
//	})
//	// err: errors.Is(err, fence.ErrStale): refused, nothing was written;
//	//      errors.Is(err, fence.ErrUnknown): the connection was lost during COMMIT; see [Outcome].
//
// What database/sql costs: statements can't be pipelined, so a transaction takes a
// few round trips more than pgfence's; and warnings of PostgreSQL are not heard,
// so a COMMIT whose wait for a synchronous standby was cancelled by an operator
// looks like any other. Use pgfence where that matters.
//
// The package imports nothing but the standard library and package fence.
package sqlfence
