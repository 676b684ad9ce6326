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
// Where the pool is opened with [Open], [OpenDB] or [Connector], the context carries the
// grant, and mappers need nothing else:
//
//	ctx = sqlfence.WithGrant(ctx, grant)
//	err := orm.WithContext(ctx).Save(&order).Error // GORM, in its own transaction
//
// What begins with that context presents the grant, and what begins with a context without
// one presents none:
//   - A transaction presents it to its end. A statement in it whose context carries other grants is refused.
//   - A statement outside of a transaction runs in one of its own, which is committed before its rows are handed out (up to
//     1 MiB of them; beyond that at their end). What can't run in a transaction, as VACUUM, needs a context without a grant.
//   - A COMMIT that is not answered is a [*fence.UnknownError], which the pool does not run again; see [Outcome].
//   - BEGIN, COMMIT and their like are refused as statements under a grant: they would leave the transaction that presents it.
//
// What database/sql costs: statements can't be pipelined, so a transaction takes a
// few round trips more than pgfence's; and warnings of PostgreSQL are not heard,
// so a COMMIT whose wait for a synchronous standby was cancelled by an operator
// looks like any other. Use pgfence where that matters.
//
// The package imports nothing but the standard library and package fence.
package sqlfence
