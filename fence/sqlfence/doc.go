// Package sqlfence is package pgfence for database/sql, with any driver; pgx's stdlib and lib/pq are tested. GORM,
// sqlx, ent and bun work under a grant too: pass them the transaction.
//
// The guarantee is that of [github.com/fencegate/fencegate/fence/pgfence]: once a newer grant is armed, no
// transaction under an older one can commit. It committed before, or it fails with [fence.ErrStale].
//
//	err := sqlfence.InTx(ctx, db, grant, func(tx *sql.Tx) error { // a login that is fence_writer
//		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = 1001")
//		return err
//	})
//	// err: errors.Is(err, fence.ErrStale): refused, nothing was written;
//	//      errors.Is(err, fence.ErrUnknown): the connection was lost during COMMIT; see [Outcome].
//
// If the pool is opened with package pgxsql, over pgx, the context carries the grant, and object mappers need no
// change:
//
//	ctx = sqlfence.WithGrant(ctx, grant)
//	err := orm.WithContext(ctx).Save(&order).Error // GORM, in its own transaction
//
// Two limits come from database/sql. Statements can't be pipelined, so InTx takes a few round trips more than that of
// pgfence. Warnings of PostgreSQL are not available, so a COMMIT whose wait for a synchronous standby was cancelled by
// an operator looks like any other. Use pgfence if that matters.
//
// The package imports nothing but the standard library and package fence.
package sqlfence
