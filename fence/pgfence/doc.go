// Package pgfence is the Go side of the fence in PostgreSQL: it arms the fence
// for a new holder, and writes under a grant.
//
// The guarantee: once [Fence.Arm] has returned nil, no transaction that passed the fence's check under an older grant
// can commit any more, at any isolation level. It committed before Arm returned, or it fails. The check runs inside
// the transaction that it protects, in triggers that fence.protect puts on tables. [InTx] also covers what the
// transaction writes to other tables, because it presents the grant at the beginning.
//
//	f := pgfence.New(arming) // a pool of logins in the role fence_gateway
//	seal := fence.NewSeal()
//	err := f.Arm(ctx, fence.Arming{Resource: "orders/1001", Token: 34, SealHash: seal.Hash(), Holder: "worker-a"})
//
//	grant := fence.Grant{Resource: "orders/1001", Token: 34, Seal: seal}
//	err = pgfence.InTx(ctx, writers, grant, func(tx pgx.Tx) error { // a pool of logins in fence_writer
//		_, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = 1001")
//		return err
//	})
//	// err: errors.Is(err, fence.ErrStale): refused, nothing was written;
//	//      errors.Is(err, fence.ErrUnknown): the connection was lost during COMMIT.
//
// A mutating call has three outcomes: done (nil), not done (an error), and
// unknown (an error that is [fence.ErrUnknown] too).
//
// The package assumes that PostgreSQL keeps the commits that it acknowledged, and that fencegate's migrations have
// been applied to the database.
package pgfence
